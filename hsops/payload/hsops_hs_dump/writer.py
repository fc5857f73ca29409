"""The thread that brings staged rows to disk, so that the forward pass does not wait for it.

The queue is bounded in passes. When it stays full for ``WAIT_S`` the pass's samples fail, and as long as it stays full
later ones fail at once: the server's health check gives it 20 s, and a blocked rank blocks all.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from . import files
from .hello import say
from .layout import Layout
from .rows import Failure, Piece, Ticket
from .settings import Settings

PASSES = 4
WAIT_S = 5.0


class Staged(Protocol):
    """One pass's rows, kept where the model runs."""

    @property
    def dtype(self) -> str:
        """safetensors' name."""
        ...

    @property
    def item(self) -> int:
        """Bytes of one element."""
        ...

    @property
    def hidden(self) -> int:
        """H."""
        ...

    def token_bytes(self) -> bytes:
        """The pass's token ids as int64, little endian. Blocks until the pass is computed."""
        ...

    def chunks(self) -> Iterator[tuple[int, memoryview]]:
        """(first row, bytes of consecutive rows), in order; a view is only good until the next one is asked for."""
        ...


class Writer:
    """Writes one folder of dumps.

    Args:
        folder: where.
        settings: what was deployed.
        facts: what every manifest line repeats: ``sglang``, ``strategy``.
        wait_s: how long a pass may wait for its place in the queue.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: str, settings: Settings, facts: dict[str, Any], *, wait_s: float = WAIT_S) -> None:
        self._folder, self._settings, self._facts = folder, settings, facts
        self._manifest = files.Manifest(folder)
        self._files: dict[Ticket, files.DumpFile] = {}
        self._jobs: queue.SimpleQueue[tuple[Staged, Sequence[Piece]] | Failure | Ticket | None] = queue.SimpleQueue()
        self._room = threading.BoundedSemaphore(PASSES)
        self._wait_s = self._patience = wait_s
        if swept := files.sweep(folder):
            say(f"removed {swept} unfinished dumps of an earlier run")
        self._thread = threading.Thread(target=self._run, name="hsops-hs-dump", daemon=True)
        self._thread.start()

    def submit(self, staged: Staged, pieces: Sequence[Piece]) -> str:
        """Hand over a pass; returns why it was not taken, or nothing. Blocks at most ``wait_s``."""
        if not self._room.acquire(timeout=self._patience):
            self._patience = 0.0
            return f"the writer did not keep up: {PASSES} passes wait for {self._folder}"
        self._patience = self._wait_s
        self._jobs.put((staged, pieces))
        return ""

    def fail(self, failure: Failure) -> None:
        """Give up a sample: what there is of it goes away, the manifest gets the reason."""
        self._jobs.put(failure)

    def drop(self, ticket: Ticket) -> None:
        """Forget a sample that a newer request for the same id replaces."""
        self._jobs.put(ticket)

    def close(self) -> None:
        """Write what was handed over, then end the thread."""
        self._jobs.put(None)
        self._thread.join()
        self._manifest.close()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if isinstance(job, Failure):
                    self._failed(job.ticket, job.reason)
                elif isinstance(job, Ticket):
                    self._discard(job)
                else:
                    self._pass(*job)
            except Exception as error:  # noqa: BLE001 - the thread must outlive whatever a sample does to it
                say(f"writer: {type(error).__name__}: {error}")
            del job  # the stage's memory goes back before the next job is awaited

    def _pass(self, staged: Staged, pieces: Sequence[Piece]) -> None:
        try:
            ids = staged.token_bytes()
            for first, view in staged.chunks():
                for piece in pieces:
                    self._guarded(piece.ticket, self._rows, staged, piece, first, view, ids)
        except Exception as error:  # noqa: BLE001 - a failed copy costs this pass's samples, not the thread
            for piece in pieces:
                self._failed(piece.ticket, f"{type(error).__name__}: {error}")
        finally:
            self._room.release()
        for piece in pieces:
            if piece.last:
                self._guarded(piece.ticket, self._finish, piece.ticket)

    def _guarded(self, ticket: Ticket, step: Callable[..., None], *args: Any) -> None:
        if ticket.lost:
            return
        try:
            step(*args)
        except (OSError, ValueError, KeyError) as error:
            self._failed(ticket, f"{type(error).__name__}: {error}")

    def _rows(self, staged: Staged, piece: Piece, first: int, view: memoryview, ids: bytes) -> None:
        if piece.position == 0 and piece.ticket not in self._files:
            layout = Layout(
                staged.dtype,
                staged.item,
                piece.ticket.total,
                self._settings.slots,
                staged.hidden,
                self._metadata(piece),
            )
            self._files[piece.ticket] = files.DumpFile(self._folder, piece.ticket.id, layout)
        file = self._files[piece.ticket]
        size = file.layout.row
        begin = max(piece.row, first)
        end = min(piece.row + piece.count, first + len(view) // size)
        if begin < end:
            rows = view[(begin - first) * size : (end - first) * size]
            file.rows(piece.position + begin - piece.row, rows, ids[begin * 8 : end * 8])

    def _finish(self, ticket: Ticket) -> None:
        file = self._files[ticket]
        written = file.finish()
        del self._files[ticket]
        self._line(ticket, "ok", "", dtype=file.layout.dtype, hidden_size=file.layout.hidden, **written)

    def _failed(self, ticket: Ticket, reason: str) -> None:
        if ticket.lost:
            return
        self._discard(ticket)
        say(f"sample {ticket.id} failed: {reason}")
        self._line(ticket, "failed", reason, dtype="", hidden_size=0, bytes=0, checksum="", token_hash="")

    def _discard(self, ticket: Ticket) -> None:
        ticket.over = ticket.lost = True
        if file := self._files.pop(ticket, None):
            file.discard()

    def _line(self, ticket: Ticket, status: str, reason: str, **fields: Any) -> None:
        self._manifest.append(
            {
                "id": ticket.id,
                "status": status,
                "tokens": ticket.total,
                "boundaries": list(self._settings.boundaries),
                "final": self._settings.final,
                **fields,
                "reason": reason,
                "run": self._settings.run,
                "patch": self._settings.identity,
                **self._facts,
                "time": round(time.time(), 3),
            }
        )

    def _metadata(self, piece: Piece) -> dict[str, str]:
        return {
            "format": "hsops-dump/1",
            "id": piece.ticket.id,
            "boundaries": ",".join(str(k) for k in self._settings.boundaries),
            "final": self._settings.final,
            "patch": self._settings.identity,
            "sglang": str(self._facts.get("sglang", "")),
        }
