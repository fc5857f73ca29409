"""From the user's own patches and a host's files to edits. Pure: a diff is put in here, on the client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hsops.core.errors import ForeignError, UnsupportedError
from hsops.deploy.diffs import FileDiff
from hsops.deploy.facts import Facts, FileFacts
from hsops.deploy.hunks import Fitted, Misfit, fit
from hsops.deploy.parts import DiffParts, FilesParts, ScriptParts
from hsops.deploy.payload import FILE_MODE
from hsops.deploy.planned import Edit

MOST = 4  # misfits that are shown with their lines


@dataclass(frozen=True, slots=True)
class Made:
    """What a patch comes to on one host.

    Args:
        edits: every file as it must be in the end.
        there: why it is no clean host: somebody did the same by hand, in words; "" when nobody did.
        notes: what the user should know.
    """

    edits: tuple[Edit, ...]
    there: str = ""
    notes: tuple[str, ...] = ()


def base(facts: Facts, path: str) -> FileFacts | None:
    """A file without the patch: as it was recorded where the host's file is the patch's work, else as it lies there."""
    if facts.recorded.files.get(path) in ("applied", "edited", "missing"):
        return facts.originals.get(path)
    return facts.files.get(path)


def of_diff(parts: DiffParts, facts: Facts) -> Made:
    """The edits of a diff.

    Raises:
        UnsupportedError: hunks do not fit, each shown beside the host's text; or files are missing or in the way.
    """
    edits: list[Edit] = []
    notes: list[str] = []
    by_hand: list[str] = []
    wrong: list[_Wrong] = []
    for diff in parts.diffs:
        made = _forward(diff, facts, parts)
        if isinstance(made, Made):
            edits += made.edits
            notes += made.notes
        elif back := _backward(diff, facts):
            edits.append(back)
            by_hand += diff.paths
        else:
            wrong += made
    if wrong:
        raise UnsupportedError(
            "\n".join([f"{parts.label} does not fit what is there", *(line for one in wrong for line in one.lines)]),
            detail={"misfits": [one.told for one in wrong]},
            why="hsops puts a diff in only where every line of it stands exactly once; nothing was changed",
            fix="make the diff anew, against the files of this host",
        )
    there = f"{', '.join(by_hand)} has the change already, by hand or from another state_dir" if by_hand else ""
    return Made(tuple(edits), there, tuple(notes))


def of_files(parts: FilesParts, facts: Facts) -> Made:
    """The edits of copied files."""
    edits, same = [], 0
    for path, (content, mode) in parts.files.items():
        held, old = facts.files.get(path), base(facts, path)
        same += held is not None and held.content == content and path not in facts.recorded.files
        edits.append(Edit(path, content, held.sha256 if held else None, old.content if old else None, mode, exact=True))
    there = "the same files lie there already, from another state_dir or by hand" if same == len(edits) else ""
    return Made(tuple(edits), there)


def of_script(parts: ScriptParts, facts: Facts, files: Mapping[str, tuple[bytes, int] | None]) -> Made:
    """The edits of a script.

    Args:
        files: what it changed, as it left it: bytes and permission bits; None: gone.

    Raises:
        ForeignError: it changed nothing.
    """
    if not files:
        raise ForeignError(
            f"{parts.label} changes nothing here",
            why="it was run by hand before, perhaps: then hsops cannot tell what was there without it",
            fix="bring the files back that it changed (pip install --force-reinstall --no-deps sglang==<version>)",
        )
    edits = []
    for path, left in files.items():
        old = base(facts, path)
        mode = left[1] if left else FILE_MODE
        exact = left is not None and (old is None or old.mode != mode)
        edits.append(_edit(facts, path, left[0] if left else None, mode, exact=exact))
    return Made(tuple(edits))


@dataclass(frozen=True, slots=True)
class _Wrong:
    """Why a file's diff does not go in: lines for people, and the same for programs."""

    lines: tuple[str, ...]
    told: dict[str, Any]


def _forward(diff: FileDiff, facts: Facts, parts: DiffParts) -> Made | list[_Wrong]:
    """The edits of one file, or why there are none."""
    at = f"({parts.label}:{diff.line})"
    old = base(facts, diff.source) if diff.source else None
    if diff.source and old is None:
        hint = f"; strip is {parts.options['strip']}" if diff.source not in facts.recorded.files else ""
        return [_of_file(diff.source, diff, parts, "no such file on the host", f"no such file on the host {at}{hint}")]
    if diff.target and diff.target != diff.source and base(facts, diff.target):
        why = "the diff creates it, but it is there"
        return [_of_file(diff.target, diff, parts, why, f"the diff creates it {at}, but it is there")]
    fitted = fit(old.content if old else b"", diff.hunks)
    if not isinstance(fitted, Fitted):
        return [_of_hunk(one, diff, parts, brief=i >= MOST) for i, one in enumerate(fitted)]
    path = diff.target or diff.source or ""
    if diff.target is None and fitted.content:
        why = "the diff deletes it, but has not all of its lines"
        return [_of_file(path, diff, parts, why, f"the diff deletes it {at}, but has not all of its lines")]
    mode = diff.mode if diff.mode is not None else old.mode if old else FILE_MODE
    content = fitted.content if diff.target else None
    edits = [_edit(facts, path, content, mode, exact=diff.mode is not None)]
    if diff.source and diff.source != path and not diff.keeps_source:
        edits.append(_edit(facts, diff.source, None, FILE_MODE))
    return Made(tuple(edits), notes=tuple(_moved(path, fitted)))


def _of_file(path: str, diff: FileDiff, parts: DiffParts, why: str, words: str) -> _Wrong:
    """``words``: the reason with the place in the diff."""
    told = {"file": path, "why": why, "diff": parts.label, "diff_line": diff.line, "hunk": None}
    return _Wrong((f"{path}: {words}",), told)


def _edit(facts: Facts, path: str, content: bytes | None, mode: int, *, exact: bool = False) -> Edit:
    held, old = facts.files.get(path), base(facts, path)
    return Edit(path, content, held.sha256 if held else None, old.content if old else None, mode, exact)


def _moved(path: str, fitted: Fitted) -> Iterator[str]:
    for number, by in enumerate(fitted.moved, 1):
        if by:
            where = "further down" if by > 0 else "further up"
            yield f"{path}: hunk {number} stands {abs(by)} line{'s' * (abs(by) > 1)} {where} than the diff says"


def _of_hunk(misfit: Misfit, diff: FileDiff, parts: DiffParts, *, brief: bool) -> _Wrong:
    """``brief``: without the lines for people; programs get them all."""
    hunk, number, path = misfit.hunk, diff.hunks.index(misfit.hunk) + 1, diff.source or diff.target
    where = f"hunk {number} of {len(diff.hunks)} ({parts.label}:{hunk.line}, for line {hunk.start})"
    told = {
        "file": path,
        "why": misfit.why,
        "diff": parts.label,
        "diff_line": hunk.line,
        "hunk": number,
        "line": misfit.places[0] if misfit.places else None,
        "places": list(misfit.places),
        "expected": [_told(line) for line in hunk.old],
        "found": [_told(line) for line in misfit.found],
    }
    return _Wrong((f"{path}: {where}: {misfit.why}", *(() if brief else misfit.beside)), told)


def _told(line: bytes) -> str:
    """A line for programs, with its end; what is not UTF-8 is spelt out."""
    return line.decode(errors="backslashreplace")


def _backward(diff: FileDiff, facts: Facts) -> Edit | None:
    """The edit that takes over what somebody did by hand; None when it is not that.

    A deleted file cannot be told from one that never was, nor a rename without hunks from any other file.
    """
    if not diff.target or (diff.source and diff.source != diff.target) or diff.target in facts.recorded.files:
        return None
    held = facts.files.get(diff.target)
    fitted = fit(held.content, [hunk.reversed() for hunk in diff.hunks]) if held and diff.hunks else None
    if not held or not isinstance(fitted, Fitted) or (diff.source is None and fitted.content):
        return None
    return Edit(diff.target, held.content, held.sha256, fitted.content if diff.source else None, held.mode)
