"""The thread between the scheduler and the writer threads: waits for a pass, moves its rows, says who writes what."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing

from .blocks import Block
from .files import DumpFile
from .hello import say
from .jobs import End, Entry, Pass, Rows, Staged
from .layout import Layout
from .loop import Loop
from .rows import Failure, Piece, Ticket
from .scribe import Scribe

IDLE_S = 120  # an unfinished sample whose rows stop coming for so long was aborted
NewFile = Callable[[Ticket, Staged], "tuple[Layout, Callable[[], DumpFile]]"]


class Dispatcher:
    """Hands the rows of passes to scribes, each sample's to its own.

    Args:
        scribes: who writes.
        new_file: (ticket, pass) -> the dump's layout, and what makes its file.
        tick: called about every second: whatever else wants to be looked after.
        idle_s: seconds after which an unfinished sample without new rows is given up.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        scribes: Sequence[Scribe],
        new_file: NewFile,
        tick: Callable[[], None],
        *,
        idle_s: int = IDLE_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scribes, self._new_file, self._also, self._idle_s = scribes, new_file, tick, idle_s
        self._now = now
        self._entries: dict[Ticket, Entry] = {}
        self._by_id: dict[str, Entry] = {}  # the newest of each id, as long as its scribe has to do with it
        self._aged = now()
        self.loop = Loop("hsops-dispatch", self._handle, self._give_up, self._tick)

    @property
    def unfinished(self) -> int:
        """Samples that have some rows and not all."""
        return len(self._entries)

    def close(self) -> None:
        """Hand over what was put, then end; what is not whole by then fails."""
        self.loop.put(None)
        self.loop.join()
        for ticket in list(self._entries):
            self._end(ticket, "the server ended before its last rows came")

    def _handle(self, job: Pass | Failure | Ticket) -> None:
        if isinstance(job, Pass):
            self._pass(job)
        elif isinstance(job, Failure):
            self._end(job.ticket, job.reason)
        else:
            self._end(job, "")

    def _give_up(self, job: Pass | Failure | Ticket, reason: str) -> None:
        if isinstance(job, Pass):
            for piece in job.pieces:
                self._end(piece.ticket, reason)
            job.release()
        else:
            self._handle(job)

    def _pass(self, job: Pass) -> None:
        staged = job.staged
        try:
            ids = staged.token_bytes()
            with closing(staged.blocks(self._look_after)) as blocks:
                for block in blocks:
                    try:
                        for piece in job.pieces:
                            self._hand(staged, piece, block, ids)
                    finally:
                        block.done()
        except Exception as error:  # noqa: BLE001 - a failed copy costs this pass's samples, not the thread
            for piece in job.pieces:
                self._end(piece.ticket, f"{type(error).__name__}: {error}")
        finally:
            job.release()
        for piece in job.pieces:
            if piece.last:
                self._entries.pop(piece.ticket, None)

    def _hand(self, staged: Staged, piece: Piece, block: Block, ids: bytes) -> None:
        if piece.ticket.lost:
            return
        entry = self._entries.get(piece.ticket) or self._begin(staged, piece)
        if entry is None:
            return
        begin = max(piece.row, block.first)
        end = min(piece.row + piece.count, block.first + block.count)
        if begin < end:
            entry.idle = 0
            last = piece.last and end == piece.row + piece.count
            block.hold()
            position, rows = piece.position + begin - piece.row, block.rows(begin, end)
            entry.scribe.loop.put(Rows(entry, block, rows, position, ids[begin * 8 : end * 8], last))

    def _begin(self, staged: Staged, piece: Piece) -> Entry | None:
        ticket = piece.ticket
        if piece.position:
            self._end(ticket, f"rows 0 to {piece.position - 1} are not there")
            return None
        layout, make = self._new_file(ticket, staged)
        entry = self._entry(ticket, layout.tokens * layout.row)
        entry.begin = make
        return entry

    def _entry(self, ticket: Ticket, size: int = 0) -> Entry:
        older = self._by_id.get(ticket.id)
        same_file = older is not None and not older.closed
        scribe = older.scribe if older and same_file else min(self._scribes, key=lambda s: s.load)
        entry = Entry(ticket, scribe, size)
        scribe.given += size
        self._entries[ticket] = self._by_id[ticket.id] = entry
        return entry

    def _end(self, ticket: Ticket, reason: str) -> None:
        entry = self._entries.get(ticket)
        if entry is None and ticket.lost:
            return
        if entry is None:
            entry = self._entry(ticket)
        del self._entries[ticket]
        ticket.lost = True
        entry.scribe.loop.put(End(entry, reason))

    def _tick(self) -> None:
        self._look_after()
        self._age()

    def _look_after(self) -> None:
        """All that a wait for writers wants too. Nobody ages in it: the rows that are missed may lie in this pass.

        A writer that a slow disk holds up for minutes would else fail samples as aborted by their clients.
        """
        for scribe in self._scribes:
            if problem := scribe.loop.ensure():
                say(problem)
        self._also()

    def _age(self) -> None:
        """Count one second at most since the last time: a process that was stopped has not been idle."""
        now = self._now()
        if now - self._aged < 1:
            return
        self._aged = now
        self._by_id = {id_: entry for id_, entry in self._by_id.items() if not entry.closed}
        for ticket, entry in list(self._entries.items()):
            entry.idle += 1
            if entry.closed:
                del self._entries[ticket]
            elif entry.idle > self._idle_s:
                self._end(ticket, f"no more rows came for {self._idle_s} s: aborted by its client?")
