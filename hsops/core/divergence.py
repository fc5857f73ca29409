"""Where a log leaves the way of good runs: the first line of each rank that is unlike theirs. Pure.

Lines are compared as templates (figures, paths and quoted words blanked), by kind and not by count: how often a line
is said differs between good runs, whether it is said does not. What only some good runs said may be there or not.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from hsops.core.secret import kinds_without_keys, without_keys

Kinds = Mapping[str, int]  # template -> the line that said it first, in the order of the log
NEW, MISSING, STOPS = "new", "missing", "stops"


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of one rank.

    Args:
        rank: ``TP1``, or "" for the lines without a tag.
        what: ``new``: no good run said ``text``; ``missing``: all of them said ``text`` after ``after``, this one went
            on without it; ``stops``: the same, and nothing of theirs came after it.
        line: of this log: the new line, or the last one that is as in good runs; 0 before any.
        text: the new line itself, or the template that is due.
        good_line: the line of the newest good run that ``text`` is due at; 0 for ``new``.
        after: the last line as in good runs; "" before any.
    """

    rank: str
    what: str
    line: int
    text: str
    good_line: int
    after: str


def divergences(
    kinds: Mapping[str, Mapping[str, tuple[int, str]]], good: Sequence[Mapping[str, Kinds]], *, until: int = 0
) -> tuple[Divergence, ...]:
    """The first difference of each rank that has one. It names no key.

    Args:
        kinds: of the log, as ``LogSummary.kinds`` has them.
        good: the same of good runs, newest first, without the texts and the keys.
        until: the line that said the server is ready: what comes after it is no part of the start; 0: not yet.
    """
    ranks = sorted({*kinds, *(rank for run in good for rank in run)})
    own = {rank: _shown(said) for rank, said in kinds.items()}
    found = (_first(rank, own.get(rank, {}), [run.get(rank, {}) for run in good], until) for rank in ranks)
    return tuple(one for one in found if one)


def _shown(kinds: Mapping[str, tuple[int, str]]) -> dict[str, tuple[int, str]]:
    return {kind: (line, without_keys(text)) for kind, (line, text) in kinds_without_keys(kinds).items()}


def _first(rank: str, own: Mapping[str, tuple[int, str]], good: Sequence[Kinds], until: int) -> Divergence | None:
    """Whichever comes first in this log: a line that is new, or the place of one that is not there."""
    known = {kind for run in good for kind in run}
    mine = {kind: at for kind, at in own.items() if not until or at[0] <= until}
    new = min((at for kind, at in mine.items() if kind not in known), default=None)
    always = [kind for kind in (good[0] if good else {}) if all(kind in run for run in good)]
    due = next((kind for kind in always if kind not in mine), None)
    passed = [mine[kind] for kind in (always[: always.index(due)] if due else always)]
    last = max(passed, default=(0, ""))
    if new and (due is None or new[0] < last[0]):
        return Divergence(rank, NEW, new[0], new[1], 0, _before(new[0], mine, known))
    if due is None:
        return None
    if any(kind in mine for kind in always[always.index(due) :]):
        return Divergence(rank, MISSING, last[0], due, good[0][due], last[1])
    if new:  # the way of good runs ends here, and another one begins
        return Divergence(rank, NEW, new[0], new[1], 0, last[1])
    return Divergence(rank, STOPS, last[0], due, good[0][due], last[1])


def _before(line: int, mine: Mapping[str, tuple[int, str]], known: Container[str]) -> str:
    """The text of the last line before ``line`` that is as in good runs."""
    return max(((at, text) for kind, (at, text) in mine.items() if kind in known and at < line), default=(0, ""))[1]
