"""From the forward pass to the files: what the scheduler's thread calls, and what it never waits long for.

    scheduler --passes--> dispatcher --rows--> writer threads --> files, manifest

At most ``PASSES`` passes are staged. When a pass finds no room for ``WAIT_S`` its samples fail, and as long as that
lasts later ones fail at once: the server's health check gives it 20 s, and a blocked rank blocks all.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from . import files
from .dispatcher import IDLE_S, Dispatcher
from .hello import say
from .jobs import Pass, Staged
from .layout import Layout
from .loop import hand_over_soon
from .manifest import Ledger
from .rows import Failure, Piece, Ticket
from .scribe import Scribe
from .settings import Settings
from .stats import Stats, StatsFile

PASSES = 4
WAIT_S = 5.0


class Writer:
    """Writes one folder of dumps. Several may be at work in a process; a ring on the device is common to them.

    Args:
        folder: where.
        settings: what was deployed, and how many threads write.
        facts: what every manifest line repeats: ``sglang``, ``strategy``; and ``header``: texts by name that every
            dump's header repeats (``about``).
        wait_s: how long a pass may wait for its place in the queue.
        idle_s: after how many seconds without new rows an unfinished sample is given up.
        tells: keep a file of counters beside the hello files.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(
        self,
        folder: str,
        settings: Settings,
        facts: dict[str, Any],
        *,
        wait_s: float = WAIT_S,
        idle_s: int = IDLE_S,
        tells: bool = True,
    ) -> None:
        self._folder, self._settings = folder, settings
        self._facts = {name: value for name, value in facts.items() if name != "header"}
        self._header: dict[str, str] = facts.get("header", {})
        self._stats, self._tells = Stats(), tells
        self._stats_file = StatsFile(os.path.join(folder, "hello", f"{settings.run}.{os.getpid()}.stats"))
        self._room = threading.BoundedSemaphore(PASSES)
        self._wait_s = self._patience = wait_s
        hand_over_soon()
        with ExitStack() as undo:  # who asks again after a failure finds no thread and no open file of the try before
            self._ledger = Ledger(folder)
            undo.callback(self._ledger.close)
            if swept := files.sweep(folder):
                say(f"removed {swept} unfinished dumps of an earlier run")
            self._scribes: list[Scribe] = []
            for number in range(settings.writers):
                self._scribes.append(Scribe(number, self._line))
                undo.callback(self._scribes[-1].loop.put, None)
            self._dispatcher = Dispatcher(self._scribes, self._new_file, self._tick, idle_s=idle_s)
            undo.pop_all()

    def submit(self, staged: Staged, pieces: Sequence[Piece]) -> str:
        """Hand over a pass; returns why it was not taken, or nothing. Blocks at most ``wait_s``."""
        problem = self._dispatcher.loop.ensure() or self._wait_for_room()
        if problem:
            self._stats.refused += 1
            return problem
        self._stats.passes += 1
        self._stats.rows += sum(piece.count for piece in pieces)
        self._dispatcher.loop.put(Pass(staged, pieces, self._room))
        return ""

    def fail(self, failure: Failure) -> None:
        """Give up a sample: what there is of it goes away, the manifest gets the reason."""
        if self._dispatcher.loop.ensure():  # nobody is there to tell it to
            failure.ticket.lost = True
            self._line(failure.ticket, failure.reason, {})
        else:
            self._dispatcher.loop.put(failure)

    def drop(self, ticket: Ticket) -> None:
        """Forget a sample that a newer request for the same id replaces."""
        self._dispatcher.loop.put(ticket)

    def close(self) -> None:
        """Write what was handed over, then end the threads."""
        self._dispatcher.close()
        for scribe in self._scribes:
            scribe.loop.put(None)
            scribe.loop.join()
        self._ledger.flush()
        self._ledger.close()
        self._tell(now=True)

    def _wait_for_room(self) -> str:
        if self._room.acquire(blocking=False):
            self._patience = self._wait_s
            return ""
        began = time.perf_counter()
        taken = self._room.acquire(timeout=self._patience)
        self._stats.waited(time.perf_counter() - began)
        self._patience = self._wait_s if taken else 0.0
        return "" if taken else f"the writer did not keep up: {PASSES} passes wait for {self._folder}"

    def _tick(self) -> None:
        self._ledger.flush()
        self._tell(now=False)

    def _tell(self, *, now: bool) -> None:
        if not self._tells:
            return
        scribes = self._scribes
        more = {
            "writers": len(scribes),
            "samples": sum(s.samples for s in scribes),
            "failed": sum(s.failed for s in scribes),
            "unfinished": self._dispatcher.unfinished,
            "bytes": sum(s.bytes for s in scribes),
            "busy_s": [round(s.busy_s, 3) for s in scribes],
            "waiting_lines": self._ledger.waiting,
            "waiting_bytes": sum(s.load for s in scribes),
        }
        self._stats_file.write(self._stats, more, now=now)

    def _new_file(self, ticket: Ticket, staged: Staged) -> tuple[Layout, Callable[[], files.DumpFile]]:
        metadata, slots = self._metadata(ticket), self._settings.slots
        layout = Layout(staged.dtype, staged.item, ticket.total, slots, staged.hidden, staged.last, metadata)
        return layout, partial(files.DumpFile, self._folder, ticket.id, layout)

    def _line(self, ticket: Ticket, reason: str, written: dict[str, Any]) -> None:
        nothing = {"dtype": "", "hidden_size": 0, "bytes": 0, "checksum": "", "token_hash": ""}
        self._ledger.add(
            {
                "id": ticket.id,
                "status": "failed" if reason else "ok",
                "tokens": ticket.total,
                "boundaries": list(self._settings.boundaries),
                "final": self._settings.final,
                **(written or nothing),
                "reason": reason,
                **({"passes": ticket.passes} if ticket.check else {}),
                "run": self._settings.run,
                "patch": self._settings.identity,
                **self._facts,
                "time": round(time.time(), 3),
            }
        )

    def _metadata(self, ticket: Ticket) -> dict[str, str]:
        return {
            "format": "hsops-dump/1",
            "id": ticket.id,
            "boundaries": ",".join(str(k) for k in self._settings.boundaries),
            "final": self._settings.final,
            "run": self._settings.run,
            "patch": self._settings.identity,
            **{name: str(value) for name, value in self._facts.items()},
            **self._header,
        }
