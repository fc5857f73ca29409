"""A change on several hosts: what became of each, and what that makes of the whole. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hsops.core.errors import HsopsError
from hsops.core.events import Picture, Trace

PARTIAL, INTERRUPTED = 3, 130
Word = Literal["changed", "unchanged", "failed", "not-begun", "under-way"]


@dataclass(frozen=True, slots=True)
class HostOutcome:
    """What became of one host.

    Args:
        host: its name.
        word: ``unchanged``: there was nothing to do; ``not-begun``: an earlier host failed, or Ctrl-C; ``under-way``:
            it was left while it changed, and the next command there undoes what is half done.
        before, after: the states of its patches, ``?`` where nobody knows.
        seconds: how long its change took; 0 where there was none.
        error: why it failed.
    """

    host: str
    word: Word
    before: str
    after: str
    seconds: float = 0.0
    error: HsopsError | None = None


@dataclass(frozen=True, slots=True)
class HostEnded(Trace):
    """One host is through. Arguments: as of ``HostOutcome``; ``error`` is its message, or empty."""

    host: str
    outcome: str
    before: str
    after: str
    seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class HostsBoard(Picture):
    """How far the hosts are.

    Args:
        doing: ``looking at`` or ``changing``.
        total, ended: hosts.
        under_way: (host, seconds since it began).
        failed: (host, why).
        stopping: Ctrl-C was heard; those under way are waited for.
    """

    doing: str
    total: int
    ended: int
    under_way: tuple[tuple[str, float], ...]
    failed: tuple[tuple[str, str], ...] = ()
    stopping: bool = False


def ended(outcome: HostOutcome) -> HostEnded:
    """The event of an outcome."""
    said = outcome.error.message if outcome.error else ""
    return HostEnded(outcome.host, outcome.word, outcome.before, outcome.after, round(outcome.seconds, 3), said)


def unfinished(outcomes: Sequence[HostOutcome]) -> list[str]:
    """The hosts that are not as they should be."""
    return [one.host for one in outcomes if one.word not in ("changed", "unchanged")]


def exit_code(outcomes: Sequence[HostOutcome], *, interrupted: bool = False) -> int:
    """0: all are as they should be. 3: some are. Else the first error's: none is, or the first to change failed."""
    if interrupted:
        return INTERRUPTED
    failed = [one.error for one in outcomes if one.error]
    if not failed:
        return 0
    words = {one.word for one in outcomes}
    some = "changed" in words or ("unchanged" in words and "not-begun" not in words)
    return PARTIAL if some else failed[0].exit_code
