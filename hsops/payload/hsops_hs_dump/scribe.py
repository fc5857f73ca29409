"""A writer thread: the files that belong to it, from their first row to their line in the manifest."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .hello import say
from .jobs import End, Entry, Rows
from .loop import Loop
from .rows import Ticket

Line = Callable[[Ticket, str, "dict[str, Any]"], None]  # (ticket, reason or "", what the file has)


class Scribe:
    """Writes rows in order. A file belongs to one scribe: threads that write one file wait for each other.

    Args:
        number: from 0.
        line: tells the manifest.
    """

    def __init__(self, number: int, line: Line) -> None:
        self._line = line
        self.given = 0  # bytes: written by the dispatcher only
        self.bytes = self.done = self.samples = self.failed = 0  # and these by the scribe only
        self.busy_s = 0.0
        self.loop = Loop(f"hsops-write-{number}", self._handle, self._give_up)

    @property
    def load(self) -> int:
        """Bytes that its samples still wait for."""
        return self.given - self.done

    def _handle(self, job: Rows | End) -> None:
        try:
            if isinstance(job, End):
                self._end(job.entry, job.reason)
            elif not job.entry.closed:
                self._rows(job)
        except Exception as error:  # noqa: BLE001 - costs the sample, not the thread
            self._end(job.entry, f"{type(error).__name__}: {error}")
        finally:
            if isinstance(job, Rows):
                job.release()

    def _give_up(self, job: Rows | End, reason: str) -> None:
        if isinstance(job, Rows):
            job.release()
        self._end(job.entry, reason)

    def _rows(self, job: Rows) -> None:
        entry = job.entry
        job.block.wait()
        began = time.perf_counter()
        if entry.file is None:
            assert entry.begin is not None
            entry.file = entry.begin()
        entry.file.rows(job.position, job.views, job.ids)
        self.bytes += sum(len(view) for view in job.views)
        if job.last:
            written = entry.file.finish()
            self._close(entry)
            self.samples += 1
            self._line(entry.ticket, "", written)
        self.busy_s += time.perf_counter() - began

    def _end(self, entry: Entry, reason: str) -> None:
        if entry.closed:
            return
        self._close(entry)
        if entry.file is not None:
            entry.file.discard()
        if reason:
            self.failed += 1
            say(f"sample {entry.ticket.id} failed: {reason}")
            self._line(entry.ticket, reason, {})

    def _close(self, entry: Entry) -> None:
        entry.closed = entry.ticket.lost = True
        self.done += entry.size
