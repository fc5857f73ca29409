"""From part files that have all their bytes to files that are whole and durable."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hsops.core.checksum import kind_of
from hsops.core.errors import HsopsError
from hsops.core.worker import Worker
from hsops.fetch.folder import Folder
from hsops.fetch.plan import File
from hsops.fetch.prefix import Prefix
from hsops.fetch.trouble import Trouble, local_error, misplaced, not_as_told, only_copy


@dataclass(frozen=True, slots=True)
class _Piece:
    file: File
    start: int
    end: int


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

    LARGEST = 1024  # files, about, in one commit: what a kill may have to check again

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
        self._queue: queue.SimpleQueue[Sequence[tuple[File, bool]] | _Piece | str | None] = queue.SimpleQueue()
        self._prefixes: dict[str, Prefix] = {}  # by part file
        self._thread = Worker(self._run, "fetch-commit")

    def start(self) -> None:
        self._thread.start()

    def grow(self, file: File, start: int, end: int) -> None:
        """A piece of a part file is here for good: its checksum can go on. Before the file is ``put``."""
        self._queue.put(_Piece(file, start, end))

    def forget(self, part: str) -> None:
        """The part file was dropped: if it comes again, what was summed up of it is of bytes that are gone."""
        self._queue.put(part)

    def put(self, files: Sequence[tuple[File, bool]]) -> None:
        """Part files that are whole; of each whether its content as a whole was checked, or only its pieces were."""
        self._queue.put(files)

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
                whole = [f for file, checked in batch if (f := file if checked else self._read(file))]
                files = [f for f in whole if self._may_replace(f)] if self.folder.ledger.only else whole
                if files:
                    taken = self.folder.commit(files)
                    for file, error in taken.items():
                        self.refused(file, misplaced(file, error, self.folder.file(file)))
                    placed = [f for f in files if f not in taken] if taken else files
                    self.whole += len(placed)
                    self.durable(placed)
            except OSError as error:
                self.fail(local_error(error, self.folder.path))

    def _read(self, file: File) -> File | None:
        """The file if it is what it must be."""
        try:
            return self._checked(file)
        except OSError as error:
            if not self.folder.is_of_one(error):
                raise
            self.refused(file, misplaced(file, error, self.folder.part(file)))
            return None

    def _checked(self, file: File) -> File | None:
        """Read a file that came in pieces: its own checksum is of all its bytes in order. Where the host tells none,
        only the list of pieces, each with its sum, proves that they are all here.
        """
        prefix = self._prefixes.pop(file.part, None) or self._prefix(file)
        if self.folder.has_all(file):
            found = prefix.finish(self.folder.part(file))
            if file.checksum in ("", found):
                return replace(file, checksum=found)
        self.folder.drop(file.part)
        self.refused(file, not_as_told(file))
        return None

    def _prefix(self, file: File) -> Prefix:
        return Prefix(kind_of(file.checksum) if file.checksum else self.kind)

    def _sum_up(self, piece: _Piece) -> None:
        part = piece.file.part
        if part not in self._prefixes:
            self._prefixes[part] = self._prefix(piece.file)
        try:
            self._prefixes[part].add(self.folder.part(piece.file), piece.start, piece.end)
        except OSError:  # the file is refused, or it is told when it is whole and read again
            del self._prefixes[part]

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
        while (item := self._queue.get()) is not None:
            if isinstance(item, _Piece):
                self._sum_up(item)
            elif isinstance(item, str):
                self._prefixes.pop(item, None)
            else:
                batch.extend(item)
            if batch and (self._queue.empty() or len(batch) >= self.LARGEST):
                return batch, False
        return batch, True
