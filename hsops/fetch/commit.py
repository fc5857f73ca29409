"""From part files that have all their bytes to files that are whole and durable."""

from __future__ import annotations

import errno
import queue
from collections.abc import Callable, Sequence
from dataclasses import replace

from hsops.core.checksum import checksum_of, kind_of
from hsops.core.errors import HsopsError, SpaceError
from hsops.core.worker import Worker
from hsops.fetch.folder import Folder
from hsops.fetch.plan import File
from hsops.fetch.stream import Trouble


class Committer:
    """The one thread that makes part files whole files, several at a time so that syncs are shared.

    Args:
        folder: the local folder.
        kind: of the checksum of a file whose manifest tells none.
        fail: told of a folder that cannot be written.
        refused: told of a file that is not put in place, and why: not what the host says, or not all of it, or the file
            here is the only copy of what it would replace.
        durable: told of files that are durable under their names.
    """

    LARGEST = 256  # files in one commit: what a kill may have to check again

    def __init__(
        self,
        folder: Folder,
        kind: str,
        fail: Callable[[HsopsError], None],
        refused: Callable[[File, Trouble], None],
        durable: Callable[[Sequence[File]], None],
    ) -> None:
        self.folder, self.kind, self.fail, self.refused, self.durable = folder, kind, fail, refused, durable
        self.whole = 0
        self._queue: queue.Queue[tuple[File, bool] | None] = queue.Queue()
        self._thread = Worker(self._run, "fetch-commit")

    def start(self) -> None:
        self._thread.start()

    def put(self, file: File, *, checked: bool) -> None:
        """A part file that is whole; its content as a whole was ``checked``, or only its pieces were."""
        self._queue.put((file, checked))

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
                whole = [f for file, checked in batch if (f := file if checked else self._checked(file))]
                files = [f for f in whole if self._may_replace(f)]
                if files:
                    misplaced = self.folder.commit(files)
                    for file, error in misplaced.items():
                        self.refused(file, _misplaced(file, error))
                    placed = [f for f in files if f not in misplaced]
                    self.whole += len(placed)
                    self.durable(placed)
            except OSError as error:
                self.fail(local_error(error, self.folder))

    def _checked(self, file: File) -> File | None:
        """Read a file that came in pieces: its own checksum is of all its bytes in order. Where the host tells none,
        only the list of pieces, each with its sum, proves that they are all here.
        """
        kind = kind_of(file.checksum) if file.checksum else self.kind
        if self.folder.has_all(file):
            found = checksum_of(self.folder.part(file), kind)
            if file.checksum in ("", found):
                return replace(file, checksum=found)
        self.folder.drop(file.part)
        self.refused(file, not_as_told(file))
        return None

    def _may_replace(self, file: File) -> bool:
        """Asked again at the last moment: the host may have been freed of the older content since the plan."""
        if not self.folder.is_only_copy(file):
            return True
        self.folder.drop(file.part)
        self.refused(file, only_copy(file))
        return False

    def _next(self) -> tuple[list[tuple[File, bool]], bool]:
        """Wait for one file, then take what else is there; and whether the end was seen."""
        batch: list[tuple[File, bool]] = []
        item = self._queue.get()
        while item is not None:
            batch.append(item)
            if self._queue.empty() or len(batch) >= self.LARGEST:
                return batch, False
            item = self._queue.get()
        return batch, True


def not_as_told(file: File) -> Trouble:
    """Its content is another."""
    return Trouble(file.id, "checksum", "the content is not what the host says")


def only_copy(file: File) -> Trouble:
    """What is here was removed on the host, which has another file of that name now."""
    text = "the file here is the only copy of what --evict removed on the host, where another has its name now; move or"
    return Trouble(file.id, "only-copy", f"{text} rename the one here, then run it again")


def _misplaced(file: File, error: OSError) -> Trouble:
    place, why = error.filename2 or error.filename, error.strerror
    return Trouble(file.id, "local", f"{place} is in its way here: {why}; move it away, then run it again")


def local_error(error: OSError, folder: Folder) -> HsopsError:
    """A failed local write as an error for people."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SpaceError(f"{folder.path}: {error.strerror}", fix="free some room, then run it again")
    name = error.filename or folder.path
    return HsopsError(f"{name} cannot be written: {error.strerror}", fix="then run it again")
