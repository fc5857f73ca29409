"""Which rows of a forward pass belong to which sample. Pure, and equal on every rank.

The rows of a pass are its requests' one after the other: request i owns ``lengths[i]`` of them, the first of which is
position ``starts[i]`` of its prompt. A chunked prompt comes in several passes; a retracted one comes again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

PREFIX, CHECK_PREFIX = "hs-", "hscheck-"
TWICE = "two requests of its id are computed at once"
EMBEDDED = "it was sent as embeddings: its token ids stand for nothing"
SAMPLE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,159}\Z")


@dataclass(eq=False)
class Ticket:
    """One request to capture.

    Args:
        id: of the sample; the request's id without its prefix.
        total: tokens of the prompt.
        check: every rank writes it, apart from the data set.
        unfit: why its rows would be no sample; may be empty.
        have: rows 0 to have-1 are taken.
        over: complete, failed or superseded by what the passes tell, so at the same pass on every rank: not tapped.
        lost: nothing becomes of it in this process any more, or it is written: whatever else comes is not kept.
        passes: rows of each forward pass that it had rows in, all requests' together.
    """

    id: str
    total: int
    check: bool = False
    unfit: str = ""
    have: int = 0
    over: bool = False
    lost: bool = False
    passes: list[int] = field(default_factory=list)

    @property
    def key(self) -> tuple[bool, str]:
        """Which dump it becomes."""
        return self.check, self.id


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one sample: the pass's ``count`` rows from ``row`` are its positions from ``position``."""

    ticket: Ticket
    row: int
    position: int
    count: int
    last: bool


@dataclass(frozen=True)
class Failure:
    """A sample that cannot become whole, and why."""

    ticket: Ticket
    reason: str


def ticket_for(rid: object, total: int) -> Ticket | None:
    """A ticket when the request asks for capture by its id, else None."""
    if not is_wanted(rid):
        return None
    check = str(rid).startswith(CHECK_PREFIX)
    sample = str(rid).removeprefix(CHECK_PREFIX if check else PREFIX)
    return Ticket(sample, total, check) if SAMPLE_ID.match(sample) else None


def is_wanted(rid: object) -> bool:
    """Whether the request's id asks for capture, be the rest of it usable or not."""
    return isinstance(rid, str) and rid.startswith((PREFIX, CHECK_PREFIX))


def place(
    tickets: Sequence[Ticket | None], lengths: Sequence[int], starts: Sequence[int]
) -> tuple[list[Piece], list[Failure]]:
    """The new rows of each sample in a pass; tickets are moved on.

    Rows that a sample already has (a retracted request starts again) and rows past its prompt (its own output) are
    left out, so a sample's pieces always follow each other. A ticket that is there twice stands for two requests of one
    id (a client that gave up and asked again, where only ids are known): whose rows are whose cannot be told.
    """
    pieces: list[Piece] = []
    failures = [Failure(ticket, TWICE) for ticket in _twice(tickets)]
    for failure in failures:
        failure.ticket.over = True
    row = 0
    for ticket, length, start in zip(tickets, lengths, starts, strict=True):
        first, row = row, row + length
        if ticket is None or ticket.over:
            continue
        if ticket.unfit or start > ticket.have:
            failures.append(Failure(ticket, ticket.unfit or _gap(ticket, start)))
            ticket.over = True
            continue
        end = min(start + length, ticket.total)
        if end > ticket.have:
            skipped = ticket.have - start
            last = end == ticket.total
            pieces.append(Piece(ticket, first + skipped, ticket.have, end - ticket.have, last))
            ticket.have, ticket.over = end, last
    return pieces, failures


def _twice(tickets: Sequence[Ticket | None]) -> list[Ticket]:
    count = Counter(ticket for ticket in tickets if ticket is not None and not ticket.over)
    return [ticket for ticket, times in count.items() if times > 1]


def _gap(ticket: Ticket, start: int) -> str:
    if ticket.have == 0:
        return f"its first {start} rows came from a cache and were not computed"
    return f"rows {ticket.have} to {start - 1} never came"
