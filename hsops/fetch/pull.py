"""Several streams at once, one committer behind them, and what to do when a stream is lost."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from hsops.core.errors import AuthenticationError, HostKeyError, HsopsError, UnreachableError
from hsops.core.events import Emit, Note
from hsops.core.meter import Meter
from hsops.core.worker import Worker
from hsops.fetch.commit import Committer, local_error
from hsops.fetch.folder import Folder
from hsops.fetch.line import Ways
from hsops.fetch.plan import Transfer, cut, streams_for
from hsops.fetch.stream import Hooks, Receiver, Trouble

RETRIES = 4  # in a row without progress, for one stream
DOUBT = 2  # such losses, and nothing more comes beside SSH: something between the machines may cut it
PAUSE_S = 0.5  # before the first retry; doubles
PROGRESS = 8 << 20  # bytes that count as progress between two losses
TICK_S = 0.5


@dataclass(frozen=True, slots=True)
class Pulled:
    """What one pull did.

    Args:
        whole: files that are now here, checked and durable.
        bytes: that came over the network.
        lost_streams: how often a stream had to be opened again.
        troubles: samples that did not come.
    """

    whole: int
    bytes: int
    lost_streams: int
    troubles: tuple[Trouble, ...]


def pull(
    ways: Ways,
    host: str,
    folder: Folder,
    transfers: tuple[Transfer, ...],
    lines: Mapping[str, str],
    *,
    streams: int,
    emit: Emit,
) -> Pulled:
    """Bring the files.

    Args:
        ways: how lines to the host are opened.
        host: its name.
        folder: where they go, locked by the caller.
        transfers: which.
        lines: the host's manifest line by sample id.
        streams: how many at once, at most.
        emit: told the progress in bytes.

    Raises:
        UnreachableError: every stream was lost too often; what came is kept.
        SpaceError: the local file system is full; what came is kept.
        HsopsError: the agent refused, or a local file cannot be written.
    """
    work = _Pull(ways, host, folder, transfers, lines, streams=streams)
    try:
        work.start()
        work.watch(emit)
    finally:
        work.end()
    return work.result()


class _LostError(Exception):
    """A line was lost. ``progress``: it had brought something."""

    def __init__(self, error: UnreachableError, *, progress: bool) -> None:
        super().__init__(error.message)
        self.error, self.progress = error, progress


class _Pull:
    """The threads of one pull and what they share."""

    def __init__(
        self,
        ways: Ways,
        host: str,
        folder: Folder,
        transfers: tuple[Transfer, ...],
        lines: Mapping[str, str],
        *,
        streams: int,
    ) -> None:
        self.ways, self.host, self.folder = ways, host, folder
        self.total, self.files = sum(t.left for t in transfers), len(transfers)
        self._todo, self._left = deque(transfers), self.total  # bytes of those that no stream has taken
        self._streams = streams_for(transfers, streams)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._moved = self._lost = 0
        self._troubles: list[Trouble] = []
        self._error: HsopsError | None = None  # fatal: everybody stops
        self._last_loss: UnreachableError | None = None  # of a stream that gave up; the others go on
        self._notes: queue.SimpleQueue[Note] = queue.SimpleQueue()
        self._committer = Committer(folder, lines, self._fail)
        self._workers = [Worker(self._work, f"fetch-{i}") for i in range(self._streams)]

    def start(self) -> None:
        self._committer.start()
        for worker in self._workers:
            worker.start()

    def watch(self, emit: Emit) -> None:
        """Tell the progress until all threads are done."""
        meter = Meter("fetch", "bytes", self.total)
        for worker in self._workers:
            while worker.is_alive():
                worker.join(TICK_S)
                if self._moved < self.total:
                    self._tell(meter, emit)
            worker.check()
        self._committer.finish()
        self._committer.check()
        self._tell(meter, emit)

    def end(self) -> None:
        """On every way out: no thread writes any more, and what arrived whole is committed."""
        self._stop.set()
        for worker in self._workers:
            worker.join(2 * TICK_S)  # one that waits for a dead link is left to the end of the process
        self._committer.finish()

    def result(self) -> Pulled:
        """What was done.

        Raises:
            HsopsError: why it could not be done to the end.
        """
        error = self._error or (self._last_loss if self._todo else None)
        if error is not None:
            here = f"{self._committer.whole} of {self.files} files came whole and are kept; a rerun continues"
            error.why = f"{error.why}; {here}" if error.why else here
            raise error
        return Pulled(self._committer.whole, self._moved, self._lost, tuple(self._troubles))

    def _work(self) -> None:
        failures = 0
        while not self._stop.is_set() and failures <= RETRIES and self._todo:
            failures = self._try_line(failures)

    def _try_line(self, failures: int) -> int:
        """Use up one line; returns how many in a row were lost without progress."""
        try:
            self._one_line()
        except _LostError as lost:
            failures = 1 if lost.progress else failures + 1
            self._lose(lost.error, failures)
            return failures
        except HsopsError as error:
            self._fail(error)
        except OSError as error:
            self._fail(local_error(error, self.folder))
        return 0

    def _one_line(self) -> None:
        """Open a line and use it up.

        Raises:
            _LostError: it was lost; what it was asked for and did not bring was given back.
        """
        receiver = None
        try:
            with closing(self.ways.open(self._notes.put)) as line:
                receiver = Receiver(line, self.folder, self._hooks(), self.host)
                receiver.run(self._take, self._stop)
        except UnreachableError as error:
            progress = receiver is not None and (receiver.settled > 0 or receiver.moved >= PROGRESS)
            raise _LostError(error, progress=progress) from None
        finally:
            self._give_back(receiver.rest() if receiver else ())

    def _lose(self, error: UnreachableError, failures: int) -> None:
        if isinstance(error, HostKeyError | AuthenticationError):
            self._fail(error)
            return
        with self._lock:
            self._lost += 1
            self._last_loss = error
        again = f"opened again ({failures} of {RETRIES})" if failures <= RETRIES else "given up"
        self._notes.put(Note(f"a stream was lost: {error.message}; {again}", self.host, "warn"))
        if failures >= DOUBT:
            self.ways.shut(error, self._notes.put)
        if failures <= RETRIES:
            self._stop.wait(PAUSE_S * 2 ** (failures - 1))

    def _take(self) -> tuple[Transfer, ...]:
        with self._lock:
            taken = cut(self._todo, self._left, self._streams)
            self._left -= sum(t.left for t in taken)
            return taken

    def _give_back(self, rest: tuple[Transfer, ...]) -> None:
        with self._lock:
            self._todo.extend(rest)
            self._left += sum(t.left for t in rest)

    def _hooks(self) -> Hooks:
        return Hooks(self._count, self._committer.put, self._trouble)

    def _count(self, count: int) -> None:
        with self._lock:
            self._moved += count

    def _trouble(self, trouble: Trouble) -> None:
        with self._lock:
            self._troubles.append(trouble)

    def _fail(self, error: HsopsError) -> None:
        with self._lock:
            self._error = self._error or error
        self._stop.set()

    def _tell(self, meter: Meter, emit: Emit) -> None:
        while not self._notes.empty():
            emit(self._notes.get())
        emit(meter.at(self._moved, f"{self._committer.whole} of {self.files} files"))
