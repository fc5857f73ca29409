"""A plan as a value, and what those of all kinds of patches share. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hsops.core.errors import ForeignError
from hsops.core.units import counted
from hsops.deploy.facts import Facts, Seen
from hsops.deploy.payload import FILE_MODE, PACKAGE


@dataclass(frozen=True, slots=True)
class Action:
    """One file that changes.

    Args:
        kind: new, append, update, restore, remove or mode.
        path: relative to the place.
        before, after: its bytes; None: no file.
        note: what there is to say of it; "" when its lines tell.
    """

    kind: str
    path: str
    before: bytes | None
    after: bytes | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """A file as it must be in the end, changed or not, for the agent.

    Args:
        path: relative to site-packages.
        content: None removes it.
        before: sha256 of what is there; None: nothing.
        original: what a revert brings back when the host has no record of the file being ours.
        mode: permission bits of a new file; with ``exact`` of any.
    """

    path: str
    content: bytes | None
    before: str | None
    original: bytes | None
    mode: int = FILE_MODE
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the matter and what would be done.

    Args:
        patch: its name; ``identity`` and ``options``: of what would be there afterwards.
        state: ``absent``, ``applied``, ``stale``, ``partial`` or ``foreign``, before.
        reason: why it is not simply absent or applied; may be empty.
        sglang: SGLang's version.
        actions: the files that change.
        edits: all files of the patch, for the agent; empty in a plan to revert.
        place: where the files lie: ``source``, ``hook``, ``site`` or an absolute folder.
        warnings: what the user should know.
        seen: what the plan rests on.
        untried: a script's, and it was not run there yet: what it does is not known.
    """

    patch: str
    identity: str
    options: dict[str, object]
    state: str
    reason: str
    sglang: str
    actions: tuple[Action, ...]
    edits: tuple[Edit, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    place: str = "source"
    seen: Seen = field(default_factory=Seen)
    kind: str = "hs-dump"
    untried: bool = False

    @property
    def changes(self) -> int:
        """How many files change."""
        return len(self.actions)

    @property
    def needed(self) -> bool:
        """There is something to do, if only to record files that lie there already."""
        return self.untried or bool(self.actions) or bool(self.edits and self.state != "applied")

    def diff(self, *, whole: bool = True) -> Iterator[str]:
        """The plan as a unified diff, line by line.

        Args:
            whole: also of hsops' own package, which comes or goes; else its files are one line, before the rest,
                so that what becomes of SGLang's files is what one sees.
        """
        own = () if whole else tuple(a for a in self.actions if f"{PACKAGE}/" in a.path and None in (a.before, a.after))
        for kind in dict.fromkeys(action.kind for action in own):
            alike = [action.after or action.before or b"" for action in own if action.kind == kind]
            files, lines = counted(len(alike), "file"), counted(sum(content.count(b"\n") for content in alike), "line")
            yield f"# {kind} {PACKAGE}/: {files} of hsops' own, {lines} (-v shows them)"
        for action in (action for action in self.actions if action not in own):
            before, after = (_lines(action.before), _lines(action.after))
            source = f"a/{action.path}" if action.before is not None else "/dev/null"
            target = f"b/{action.path}" if action.after is not None else "/dev/null"
            yield from (line.rstrip("\n") for line in difflib.unified_diff(before, after, source, target))


def way_back(
    facts: Facts,
    name: str,
    judged: tuple[str, str],
    actions: Sequence[Action],
    place: str,
    *,
    kind: str = "hs-dump",
    force: bool = False,
) -> Plan:
    """The plan that takes a recorded patch of any kind out, by ``actions``; ``judged``: its state and the reason.

    Raises:
        ForeignError: somebody edited the files since, and ``force`` is not given.
    """
    state, reason = judged
    if state == "foreign" and not force:
        raise ForeignError(
            reason,
            why="a revert would undo that too",
            fix=f"look: hsops deploy --revert {name} --force --diff --check; do it: the same without --check",
        )
    told = facts.recorded
    return Plan(
        name,
        told.identity,
        told.options,
        state,
        reason,
        facts.version,
        tuple(actions),
        place=place,
        seen=facts.seen,
        kind=kind,
    )


def recorded_state(facts: Facts, identity: str) -> tuple[str, str]:
    """As ``state_of``, by the host's record alone, for a patch of any kind."""
    recorded = facts.recorded
    if recorded.state == "applied":
        return ("applied", "") if recorded.identity == identity else ("stale", f"it is {recorded.identity}")
    if recorded.state == "partial":
        return "partial", _why_partial(facts)
    if recorded.state == "foreign":
        edited = [path for path, told in recorded.files.items() if told == "edited"]
        return "foreign", f"somebody edited {', '.join(edited)} after hsops"
    return "absent", ""


def _why_partial(facts: Facts) -> str:
    told = facts.recorded
    if told.sglang != facts.version:
        return f"SGLang is {facts.version} now, it was {told.sglang} when the patch was applied"
    undone = [path for path, state in told.files.items() if state != "applied"]
    return f"somebody undid {', '.join(undone)}"


def _lines(content: bytes | None) -> list[str]:
    return (content or b"").decode(errors="replace").splitlines(keepends=True)
