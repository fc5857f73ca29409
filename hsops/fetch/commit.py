"""From part files that have all their bytes to dumps that are whole and durable."""

from __future__ import annotations

import errno
import queue
from collections.abc import Callable, Mapping

from hsops.core.errors import HsopsError, SpaceError
from hsops.core.worker import Worker
from hsops.fetch.folder import Folder
from hsops.fetch.plan import Transfer


class Committer:
    """The one thread that makes part files dumps, several at a time so that syncs are shared.

    Args:
        folder: the local folder.
        lines: the host's manifest lines by id.
        fail: told of a folder that cannot be written.
    """

    LARGEST = 64  # files in one commit: what a kill may have to check again

    def __init__(
        self,
        folder: Folder,
        lines: Mapping[str, str],
        fail: Callable[[HsopsError], None],
    ) -> None:
        self.folder, self.lines, self.fail = folder, lines, fail
        self.whole = 0
        self._queue: queue.Queue[Transfer | None] = queue.Queue()
        self._thread = Worker(self._run, "fetch-commit")

    def start(self) -> None:
        self._thread.start()

    def put(self, transfer: Transfer) -> None:
        """A part file that is whole and has the right checksum."""
        self._queue.put(transfer)

    def finish(self) -> None:
        """Commit what is queued and end. Idempotent."""
        self._queue.put(None)
        self._thread.join()

    def check(self) -> None:
        """Raise what the thread raised, if it did."""
        self._thread.check()

    def _run(self) -> None:
        ended = False
        while not ended:
            batch, ended = self._next()
            try:
                if batch:
                    self.folder.commit([t.sample for t in batch], self.lines)
                    self.whole += len(batch)
            except OSError as error:
                self.fail(local_error(error, self.folder))

    def _next(self) -> tuple[list[Transfer], bool]:
        """Wait for one file, then take what else is there; and whether the end was seen."""
        batch: list[Transfer] = []
        item = self._queue.get()
        while item is not None:
            batch.append(item)
            if self._queue.empty() or len(batch) >= self.LARGEST:
                return batch, False
            item = self._queue.get()
        return batch, True


def local_error(error: OSError, folder: Folder) -> HsopsError:
    """A failed local write as an error for people."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SpaceError(f"{folder.path}: {error.strerror}", fix="free some room, then run it again")
    name = error.filename or folder.path
    return HsopsError(f"{name} cannot be written: {error.strerror}", fix="then run it again")
