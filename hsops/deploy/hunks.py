"""Hunks into a file's bytes, strictly: each where its lines stand exactly once, or not at all. Pure.

No fuzz: one line that differs anywhere in a hunk is a misfit, and shown beside what the host has. Line numbers may have
moved. A hunk that changes the first or the last line of a file has no lines around it on that side, so it must stand
there: otherwise a line that was added at the end could be added again.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hsops.deploy.diffs import Hunk

SHOWN = 24  # lines of a misfit; a hunk of hundreds would hide the next one
_CLOSE = 0.3  # share of a hunk's lines that a place must have to be called near


@dataclass(frozen=True, slots=True)
class Fitted:
    """The bytes afterwards, and by how many lines each hunk stands elsewhere than it says."""

    content: bytes
    moved: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a hunk does not go in.

    Args:
        hunk: which.
        why: in a few words.
        beside: lines for people: the hunk's own held against the host's, with its line numbers.
        places: lines of the host's file, from 1, at which the hunk's lines stand or, when they do not, nearly do.
        found: the host's lines at the first of these, as many as the hunk has.
    """

    hunk: Hunk
    why: str
    beside: tuple[str, ...] = ()
    places: tuple[int, ...] = ()
    found: tuple[bytes, ...] = ()


def fit(content: bytes, hunks: Sequence[Hunk]) -> Fitted | list[Misfit]:
    """``content`` with all hunks in it, or each that does not fit."""
    lines = _split(content)
    places: list[tuple[int, Hunk]] = []
    misfits, moved, end = [], [], 0
    for hunk in hunks:
        found = _places(lines, hunk)
        if len(found) == 1 and found[0] >= end:
            places.append((found[0], hunk))
            moved.append(found[0] + 1 - hunk.start if hunk.start else 0)
            end = found[0] + len(hunk.old)
        else:
            misfits.append(_misfit(lines, hunk, found))
    if misfits:
        return misfits
    for place, hunk in reversed(places):
        lines[place : place + len(hunk.old)] = hunk.new
    return Fitted(b"".join(lines), tuple(moved))


def _split(content: bytes) -> list[bytes]:
    """Lines with their ends; ``\\n`` alone ends one (bytes.splitlines would also split at ``\\r``)."""
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _places(lines: list[bytes], hunk: Hunk) -> list[int]:
    """Where the hunk's old lines stand, as indices."""
    if no_context(hunk):
        return []
    old, last = list(hunk.old), len(lines) - len(hunk.old)
    candidates = range(last + 1)
    if not hunk.leading:
        candidates = range(min(1, last + 1))
    if not hunk.trailing:
        candidates = range(max(last, candidates.start), min(last + 1, candidates.stop))
    return [i for i in candidates if lines[i : i + len(old)] == old]


def no_context(hunk: Hunk) -> bool:
    """It was made without lines around its change, so that its place cannot be told from others."""
    return not hunk.leading and hunk.start > 1


def _misfit(lines: list[bytes], hunk: Hunk, found: list[int]) -> Misfit:
    if no_context(hunk):
        return Misfit(hunk, "it has no lines before its change to find its place by: make it with diff -U3")
    why, beside = "", tuple[str, ...]()
    if len(found) > 1:
        at = ", ".join(str(i + 1) for i in found[:6]) + (", ..." if len(found) > 6 else "")
        why = f"its lines stand {len(found)} times, at lines {at}: make it with more context (-U10)"
    elif found:
        why = f"its lines stand at line {found[0] + 1}, before those of the hunk above it"
    else:
        found = [i for i in range(len(lines) - len(hunk.old) + 1) if lines[i : i + len(hunk.old)] == list(hunk.old)]
        if found and hunk.old:
            where = "last" if not hunk.trailing else "first"
            why = f"its lines must be the file's {where} ones, but stand at line {found[0] + 1}"
        elif (near := _nearest(lines, hunk)) is None:
            return Misfit(hunk, "nothing like its lines is in the file", tuple(_own(hunk)))
        else:
            found, beside = [near], tuple(_beside(lines, near, hunk))
            why = _difference(lines[near : near + len(hunk.old)], hunk)
    places = tuple(i + 1 for i in found)
    return Misfit(hunk, why, beside, places, tuple(lines[found[0] : found[0] + len(hunk.old)]))


def _nearest(lines: list[bytes], hunk: Hunk) -> int | None:
    """Where most of the hunk's lines stand, blanks aside; of equals the one nearest to where it says it is."""
    wanted = [line.strip() for line in hunk.old]
    have = [line.strip() for line in lines]
    score: dict[int, int] = {}
    where: dict[bytes, list[int]] = {}
    for index, line in enumerate(have):
        where.setdefault(line, []).append(index)
    for offset, line in enumerate(wanted):
        for index in where.get(line, ()) if line else ():
            for start in range(max(0, index - offset - 2), index - offset + 3):  # lines that were added or taken out
                score[start] = score.get(start, 0) + (3 if start == index - offset else 1)
    best = max(score, key=lambda start: (score[start], -abs(start + 1 - hunk.start)), default=None)
    return best if best is not None and score[best] >= _CLOSE * 3 * sum(map(bool, wanted)) else None


def _difference(have: Sequence[bytes], hunk: Hunk) -> str:
    pairs = list(zip(have, hunk.old, strict=False))
    if len(have) == len(hunk.old):
        if all(a.rstrip(b"\r\n") == b.rstrip(b"\r\n") for a, b in pairs):
            names = {True: "CRLF", False: "LF"}
            sides = [any(line.endswith(b"\r\n") for line in side) for side in (have, hunk.old)]
            if sides[0] != sides[1]:
                return f"only the line ends differ: {names[sides[0]]} on the host, {names[sides[1]]} in the diff"
            return "only the line end at the end of the file differs"
        if all(a.split() == b.split() for a, b in pairs):
            return "only blanks differ"
    return "the host's lines differ"


def _own(hunk: Hunk) -> Iterator[str]:
    yield from (f"  diff        {_text(line)}" for line in hunk.old[:SHOWN])
    if len(hunk.old) > SHOWN:
        yield f"              ... {len(hunk.old) - SHOWN} more"


def _beside(lines: list[bytes], near: int, hunk: Hunk) -> Iterator[str]:
    """The hunk's lines and the host's, equal ones once; what the host alone has before and behind them is left out."""
    begin = max(0, near - 2)
    have, rows = lines[begin : near + len(hunk.old) + 2], []
    matcher = difflib.SequenceMatcher(None, have, list(hunk.old), autojunk=False)
    codes = matcher.get_opcodes()
    for number, (tag, a1, a2, b1, b2) in enumerate(codes):
        numbered = [f"{begin + i + 1:>6} {_text(have[i])}" for i in range(a1, a2)]
        if tag == "equal":
            rows += [f"  both {line}" for line in numbered]
            continue
        rows += [f"  diff        {_text(line)}" for line in hunk.old[b1:b2]]
        if tag != "delete" or 0 < number < len(codes) - 1:
            rows += [f"  host {line}" for line in numbered]
    first = next((i for i, row in enumerate(rows) if not row.startswith("  both")), 0)
    skipped = max(0, first - 3)
    yield from rows[skipped : skipped + SHOWN]
    if len(rows) > skipped + SHOWN:
        yield f"              ... {len(rows) - skipped - SHOWN} more"


def _text(line: bytes) -> str:
    """A line for people: what cannot be seen is spelt out."""
    body = line.rstrip(b"\n")
    shown = body.decode(errors="backslashreplace").replace("\t", "\\t").replace("\r", "\\r")
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in shown)
    return shown[:140] + ("" if line.endswith(b"\n") else " (no line end)")
