"""Frees the host of files that are safe here, and keeps a ledger of it."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from hsops.core.checksum import matches
from hsops.core.deadline import Deadline
from hsops.core.errors import RemoteError, UnreachableError
from hsops.core.events import Emit, Note
from hsops.core.files import make_durable, sync_folder
from hsops.core.worker import Worker
from hsops.fetch.folder import Folder
from hsops.fetch.plan import File
from hsops.remote.agent import Agent

MOST = 256  # files in one request
MOST_READ = 16 << 30  # bytes, about, that one request has the host read: within its deadline
_PATIENCE = Deadline(idle=300.0, total=300.0)  # the host may have to read them
_AGAIN = Deadline(idle=60.0, total=300.0)  # it has read them once, and has them in memory
_PAUSES_S = (1.0, 2.0, 4.0, 8.0)  # after a loss
_LAST_S = 3.0  # for a request that is under way when the fetch ends early


class Evictor:
    """One thread: reads a file again here, writes it down, has it removed there.

    The order is the promise: a file is durable, equal to the host's, and in the ledger, before the host is asked.

    Args:
        agent: on the host.
        source: the folder there.
        folder: the local one.
        emit: told what was not removed, and why.
    """

    def __init__(self, agent: Agent, source: str, folder: Folder, emit: Emit) -> None:
        self._agent, self._source, self._folder, self._emit = agent, source, folder, emit
        self.ledger = folder.ledger.path
        self.files = self.bytes = 0  # that were removed
        self.kept: dict[str, str] = {}  # by id: why not
        self._gone = folder.ledger.evicted(agent.host.name, source)
        self._queue: queue.SimpleQueue[Sequence[File] | None] = queue.SimpleQueue()
        self._dropped = threading.Event()
        self._thread = Worker(self._run, "fetch-evict")
        self._thread.start()

    def put(self, files: Sequence[File]) -> None:
        """They are here, durable, under their names.

        Raises:
            HsopsError: the host could not be asked.
        """
        self._thread.check()
        self._queue.put(files)

    def came(self, files: Sequence[File]) -> None:
        """The same of files that came just now: the host has them, whatever was removed there before."""
        for file in files:
            self._gone.pop(file.name, None)
        self.put(files)

    def finish(self) -> None:
        """Work off what was put, and end. Idempotent.

        Raises:
            HsopsError: the host could not be asked; what is there still is removed by the next run.
        """
        self._queue.put(None)
        self._thread.join()
        self._thread.check()

    def drop(self) -> None:
        """End now: what is queued stays on the host until a later run. A host that is silent is not waited for."""
        self._dropped.set()
        self._queue.put(None)
        self._thread.join(_LAST_S)

    def _run(self) -> None:
        ended = False
        while not ended and not self._dropped.is_set():
            files, ended = self._next()
            for some in requests(files):
                due = [f for f in some if self._is_due(f)]
                self._sync_names(due)
                if not self._dropped.is_set():
                    self._evict(due)

    def _sync_names(self, files: Sequence[File]) -> None:
        """Of the files, and of the folders that they are in."""
        root = self._folder.path
        folders = {root / parent for f in files for parent in PurePosixPath(f.name).parents}
        for folder in folders:
            sync_folder(folder)

    def _next(self) -> tuple[list[File], bool]:
        files = list[File]()
        item = self._queue.get()
        while item is not None:
            files.extend(item)
            if self._queue.empty() or len(files) >= MOST:
                return files, False
            item = self._queue.get()
        return files, True

    def _is_due(self, file: File) -> bool:
        if self._gone.get(file.name) == file.version or self._dropped.is_set():
            return False
        if self._reads_right(file):
            return True
        self._keep(file, "the local copy does not read as it came")
        return False

    def _reads_right(self, file: File) -> bool:
        """From the disk, not from memory, where the system lets go of what it holds of the file."""
        path = self._folder.file(file)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                make_durable(handle)  # it may have been put here by something else than a fetch
                if sys.platform == "linux":
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
            return matches(path, file.checksum)
        except (OSError, ValueError):
            return False

    def _evict(self, files: Sequence[File]) -> None:
        if not files:
            return
        self._write("copied", files)
        asked = [[f.name, f.bytes, *(f.inode or (0, 0)), f.checksum] for f in files]
        answer = self._ask(asked)
        removed, kept = set(answer["removed"]), answer["kept"]
        gone = [f for f in files if f.name in removed]
        before = [f for f in files if kept.get(f.name) == "missing"]  # by an earlier run whose client had died
        stay = {f: why for f in files if (why := kept.get(f.name, "")) not in ("", "missing")}
        for file, why in stay.items():
            self._keep(file, why)
        self._write("kept", stay)
        for file in gone:
            self.kept.pop(file.id, None)  # an older version of it
        self._gone.update({f.name: f.version for f in (*gone, *before)})
        self.files, self.bytes = self.files + len(gone), self.bytes + sum(f.bytes for f in gone)
        self._write("evicted", [*gone, *before])

    def _ask(self, files: list[list[object]]) -> dict[str, dict[str, str]]:
        patience = _PATIENCE
        for seconds in _PAUSES_S:
            with suppress(RemoteError, UnreachableError):  # a host that is away for a moment, or answers late
                return self._agent.call("dumps-evict", deadline=patience, folder=self._source, files=files)
            patience = _AGAIN
            if self._dropped.wait(seconds):
                return {"removed": {}, "kept": {}}
        return self._agent.call("dumps-evict", deadline=patience, folder=self._source, files=files)

    def _keep(self, file: File, why: str) -> None:
        self.kept[file.id] = why
        self._emit(Note(f"{file.id} stays on the host: {why}", self._agent.host.name, "warn"))

    def _write(self, state: str, files: Collection[File]) -> None:
        self._folder.ledger.write(state, files, host=self._agent.host.name, source=self._source)


def requests(files: Sequence[File]) -> Iterator[list[File]]:
    """Files in as many requests as they take: of one without an inode the host reads the content."""
    some, to_read = list[File](), 0
    for file in files:
        if some and (len(some) == MOST or to_read >= MOST_READ):
            yield some
            some, to_read = [], 0
        some.append(file)
        to_read += 0 if file.inode else file.bytes
    if some:
        yield some


class NoEviction:
    """In its place when nothing is to be removed."""

    files = bytes = 0
    ledger = Path()
    kept: dict[str, str] = {}  # noqa: RUF012 - nothing is ever put in

    def put(self, files: Sequence[File]) -> None:
        """They stay."""

    def came(self, files: Sequence[File]) -> None:
        """They stay."""

    def finish(self) -> None:
        """Nothing is left to do."""

    def drop(self) -> None:
        """Nor to be dropped."""
