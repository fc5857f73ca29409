"""Several streams at once, one committer behind them, and what to do when a stream is lost."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from hsops.core.errors import AuthenticationError, HostKeyError, HsopsError, UnreachableError
from hsops.core.events import Emit, Event, Note, Trace
from hsops.core.inventory import Channel
from hsops.core.meter import Meter
from hsops.core.worker import Worker
from hsops.fetch.commit import Committer, local_error, not_as_told
from hsops.fetch.folder import Folder
from hsops.fetch.line import Ways
from hsops.fetch.pace import Pace, Streams
from hsops.fetch.pieces import Piece, Pieces
from hsops.fetch.plan import File
from hsops.fetch.stream import Hooks, Receiver, Trouble
from hsops.fetch.throttle import Throttle

RETRIES = 4  # in a row without progress, for one stream
DOUBT = 2  # such losses, and nothing more comes beside SSH: something between the machines may cut it
PAUSE_S = 0.5  # before the first retry; doubles
PROGRESS = 8 << 20  # bytes that count as progress between two losses
TICK_S = 0.5
TRIES = 3  # of a piece that comes with a wrong checksum
OPENING = (
    4  # connections that are being opened at once: sshd drops some from 10 on that have not logged in (MaxStartups)
)
IDLE_S = 15.0  # a line without work is closed before either end takes it for dead


@dataclass(frozen=True, slots=True)
class Pulled:
    """What one pull did.

    Args:
        whole: files that are now here, checked and durable.
        bytes: that came over the network.
        lost_streams: how often a stream had to be opened again.
        bad_checksums: pieces and files that came with a wrong checksum, and were sent again.
        streams: the most that were open at once.
        troubles: files that did not come.
    """

    whole: int = 0
    bytes: int = 0
    lost_streams: int = 0
    bad_checksums: int = 0
    streams: int = 0
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True, slots=True)
class Wish:
    """How files are to be pulled.

    Args:
        streams: how many at once.
        way: by which the bytes come.
        sums: the kind of checksum of pieces.
        always: also of files whose checksum the manifest has.
        rate: bytes a second, at most; 0: no limit.
        recheck: read every local file again instead of trusting its inode's times.
        follow: until nothing more will come.
        evict: remove on the host what is safe here.
    """

    streams: Streams
    way: Channel = "auto"
    sums: str = "xxh3"
    always: bool = False
    rate: float = 0.0
    recheck: bool = False
    follow: bool = False
    evict: bool = False


@dataclass(frozen=True, slots=True)
class StreamStates(Trace):
    """What each stream does.

    Args:
        streams: ``opening``, ``flowing``, ``idle`` or ``lost``, bytes so far, and how often it was lost.
    """

    streams: tuple[tuple[str, int, int], ...]


def pull(
    ways: Ways,
    host: str,
    folder: Folder,
    pieces: Pieces,
    wish: Wish,
    *,
    emit: Emit,
    durable: Callable[[Sequence[File]], None] = lambda _: None,
) -> Pulled:
    """Bring the files.

    Args:
        ways: how lines to the host are opened.
        host: its name.
        folder: where they go, locked by the caller.
        pieces: which; until they are closed, more may come.
        wish: how.
        emit: told the progress in bytes.
        durable: told of files that are here for good, from a thread.

    Raises:
        UnreachableError: every stream was lost too often; what came is kept.
        SpaceError: the local file system is full; what came is kept.
        HsopsError: the agent refused, or a local file cannot be written.
    """
    work = _Pull(ways, host, folder, pieces, wish=wish, durable=durable)
    try:
        work.watch(emit)
    finally:
        work.end()
    return work.result()


class _LostError(Exception):
    """A line was lost. ``progress``: it had brought something; ``begun``: it had been opened."""

    def __init__(self, error: UnreachableError, *, progress: bool, begun: bool) -> None:
        super().__init__(error.message)
        self.error, self.progress, self.begun = error, progress, begun


@dataclass(eq=False)
class _Stream:
    """One of the streams: opened again when it is lost."""

    work: Callable[[_Stream], None]
    number: int
    state: str = "opening"
    bytes: int = 0
    lost: int = 0
    worker: Worker = field(init=False)

    def __post_init__(self) -> None:
        self.worker = Worker(lambda: self.work(self), f"fetch-{self.number}")
        self.worker.start()


class _Pull:
    """The threads of one pull and what they share."""

    def __init__(
        self,
        ways: Ways,
        host: str,
        folder: Folder,
        pieces: Pieces,
        *,
        wish: Wish,
        durable: Callable[[Sequence[File]], None],
    ) -> None:
        self.ways, self.host, self.folder, self.pieces, self.wish = ways, host, folder, pieces, wish
        self._pace = Pace(wish.streams, pieces.total if pieces.closed else None)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._opening = threading.Semaphore(OPENING)
        self._throttle = Throttle(wish.rate, self._stop.wait)
        self._moved = self._lost = self._bad = self._most = 0
        self._troubles: dict[str, tuple[File, Trouble]] = {}  # by part file: another version may come all the same
        self._error: HsopsError | None = None  # fatal: everybody stops
        self._last_loss: UnreachableError | None = None  # of a stream that gave up; the others go on
        self._notes: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._streams: list[_Stream] = []
        self._committer = Committer(folder, wish.sums, self._fail, self._refused, durable)

    def watch(self, emit: Emit) -> None:
        """Start threads as the pace wants them, tell the progress, until all is done."""
        self._committer.start()
        meter, states = Meter("fetch", "bytes", self.pieces.total), None
        while not self._stop.is_set() and not self.pieces.over:
            living = self._man()
            if not living:
                break  # all gave up
            living[0].worker.join(TICK_S / 5 if self.pieces.total < PROGRESS else TICK_S)
            meter.total = self.pieces.total
            if self._moved < meter.total:
                self._tell(meter, emit)
            now = tuple((s.state, s.bytes, s.lost) for s in self._streams)
            if now != states:
                emit(StreamStates(now))
                states = now
        for stream in self._streams:
            stream.worker.check()
        self._committer.finish()
        self._committer.check()
        self._tell(meter, emit)

    def end(self) -> None:
        """On every way out: no thread writes any more, and what arrived whole is committed."""
        self._stop.set()
        for stream in self._streams:
            stream.worker.join(2 * TICK_S)  # one that waits for a dead link is left to the end of the process
        self._committer.finish()

    def result(self) -> Pulled:
        """What was done.

        Raises:
            HsopsError: why it could not be done to the end.
        """
        error = self._error or (self._last_loss if not self.pieces.over else None)
        if error is not None:
            here = f"{self._committer.whole} of {self.pieces.files} files came whole and are kept; a rerun continues"
            error.why = f"{error.why}; {here}" if error.why else here
            raise error
        troubles = tuple(trouble for file, trouble in self._troubles.values() if self.pieces.is_latest(file))
        return Pulled(self._committer.whole, self._moved, self._lost, self._bad, self._most, troubles)

    def _man(self) -> list[_Stream]:
        """Have as many streams as are wanted; returns those that live."""
        living = [s for s in self._streams if s.worker.is_alive()]
        for stream in self._streams:
            stream.worker.check()
        self._committer.check()
        flowing = sum(s.state in ("flowing", "idle") for s in living)
        wanted = self._pace.look(time.monotonic(), self._moved, flowing)
        gave_up = sum(s.state == "lost" and not s.worker.is_alive() for s in self._streams)
        while len(living) + gave_up < wanted and (self.pieces.waits or not self._streams):
            living.append(_Stream(self._work, len(self._streams)))
            self._streams.append(living[-1])
        self._most = max(self._most, len(living))
        return living

    def _work(self, stream: _Stream) -> None:
        failures = 0
        while not self._stop.is_set() and failures <= RETRIES and not self.pieces.over and not self._surplus(stream):
            if self.pieces.waits:
                failures = self._try_line(stream, failures)
            else:
                stream.state = "idle"
                self.pieces.wait(TICK_S)
        stream.state = "lost" if failures > RETRIES else "over"

    def _surplus(self, stream: _Stream) -> bool:
        """There are as many without it as are wanted."""
        earlier = sum(s.worker.is_alive() for s in self._streams[: stream.number])
        return earlier >= self._pace.wanted

    def _try_line(self, stream: _Stream, failures: int) -> int:
        """Use up one line; returns how many in a row were lost without progress."""
        stream.state = "opening"
        try:
            self._one_line(stream)
        except _LostError as lost:
            stream.state, stream.lost = "lost", stream.lost + 1
            if not lost.begun and self._is_one_too_many(stream):
                return 0
            failures = 1 if lost.progress else failures + 1
            self._lose(lost.error, failures)
            return failures
        except HsopsError as error:
            self._fail(error)
        except OSError as error:
            self._fail(local_error(error, self.folder))
        return 0

    def _one_line(self, stream: _Stream) -> None:
        """Open a line and use it up.

        Raises:
            _LostError: it was lost; what it was asked for and did not bring was given back.
        """
        receiver, opening = None, threading.Event()
        try:
            self._opening.acquire()
            try:
                line = self.ways.open(self._notes.put)
            except BaseException:
                self._opening.release()
                raise
            with closing(line):
                hooks = self._hooks(stream, opening)
                sums = {"sums": self.wish.sums, "always": self.wish.always}
                receiver = Receiver(line, self.folder, hooks, self.host, **sums)  # type: ignore[arg-type]
                try:
                    receiver.run(self._stop)
                finally:
                    self._opened(opening)
        except UnreachableError as error:
            progress = receiver is not None and (receiver.settled > 0 or receiver.moved >= PROGRESS)
            raise _LostError(error, progress=progress, begun=receiver is not None and receiver.begun) from None
        finally:
            self.pieces.give_back(receiver.rest() if receiver else ())

    def _opened(self, opening: threading.Event) -> None:
        if not opening.is_set():
            opening.set()
            self._opening.release()

    def _is_one_too_many(self, stream: _Stream) -> bool:
        """A stream more, that the host does not let in, while others flow: then there are no more than those."""
        flowing = sum(s.state == "flowing" for s in self._streams)
        if not flowing or stream.number < self._pace.least:
            return False
        with self._lock:
            self._pace.limit(flowing)
        self._notes.put(Note(f"the host lets in no more than {flowing} streams at once", self.host))
        return True

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

    def _hooks(self, stream: _Stream, opening: threading.Event) -> Hooks:
        def take(wait: bool) -> tuple[Piece, ...]:
            self._opened(opening)
            stream.state = "flowing"
            return self._take(stream, wait=wait)

        def moved(count: int) -> None:
            stream.bytes += count
            with self._lock:
                self._moved += count
            self._throttle.take(count)

        return Hooks(take, moved, self._landed, self._wrong, self._trouble)

    def _take(self, stream: _Stream, *, wait: bool) -> tuple[Piece, ...]:
        until = time.monotonic() + IDLE_S
        while not self._stop.is_set() and not self._surplus(stream):
            if taken := self.pieces.take(self._pace.wanted):
                return taken
            if not wait or self.pieces.over or time.monotonic() > until:
                break
            stream.state = "idle"
            self.pieces.wait(TICK_S)
        return ()

    def _landed(self, piece: Piece, file: File) -> None:
        if not self.pieces.settle(piece) or file.part in self._troubles:
            return
        if self.pieces.is_latest(file):
            self._committer.put(file, checked=piece.alone)
        else:
            self.folder.drop(file.part)

    def _wrong(self, piece: Piece) -> None:
        """Sent again from its first byte, a few times."""
        with self._lock:
            self._bad += 1
        piece.tries, piece.at, piece.digest = piece.tries + 1, piece.start, None
        if piece.tries < TRIES:
            self.pieces.give_back((piece,))
            return
        file = piece.transfer.file
        self.folder.drop(file.part)
        self._trouble(piece, not_as_told(file))

    def _refused(self, file: File, trouble: Trouble) -> None:
        with self._lock:
            self._bad += trouble.code == "checksum"
            self._troubles[file.part] = file, trouble

    def _trouble(self, piece: Piece, trouble: Trouble) -> None:
        with self._lock:
            self._troubles[piece.transfer.file.part] = piece.transfer.file, trouble
        self.pieces.settle(piece)

    def _fail(self, error: HsopsError) -> None:
        with self._lock:
            self._error = self._error or error
        self._stop.set()

    def _tell(self, meter: Meter, emit: Emit) -> None:
        while not self._notes.empty():
            emit(self._notes.get())
        flowing = sum(s.state == "flowing" and s.worker.is_alive() for s in self._streams)
        detail = f"{self._committer.whole} of {self.pieces.files} files"
        emit(meter.at(self._moved, f"{detail} · {flowing} streams" if flowing else detail))
