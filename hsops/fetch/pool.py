"""The streams of one pull: as many as bring more, each opened again when it is lost."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from hsops.agent.frames import SMALL
from hsops.core.errors import AuthenticationError, HostKeyError, HsopsError, UnreachableError
from hsops.core.events import Event, Note, Trace
from hsops.core.worker import Worker
from hsops.fetch.folder import Folder
from hsops.fetch.line import Ways
from hsops.fetch.pace import Pace, Streams
from hsops.fetch.pieces import Piece, Pieces
from hsops.fetch.plan import File
from hsops.fetch.stream import Hooks, Receiver
from hsops.fetch.trouble import Trouble, local_error

RETRIES = 4  # in a row without progress, for one stream
DOUBT = 2  # such losses, and nothing more comes beside SSH: something between the machines may cut it
PAUSE_S = 0.5  # before the first retry; doubles
PROGRESS = 8 << 20  # bytes that count as progress between two losses
TICK_S = 0.5
OPENING = (
    4  # connections that are being opened at once: sshd drops some from 10 on that are not logged in (MaxStartups)
)
FAR_OPENING = 8  # where one takes a dozen round trips
IDLE_S = 15.0  # a line without work is closed before either end takes it for dead


@dataclass(frozen=True, slots=True)
class StreamStates(Trace):
    """What each stream does.

    Args:
        streams: ``opening``, ``flowing``, ``idle`` or ``lost``, bytes so far, and how often it was lost.
    """

    streams: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Results:
    """What the streams tell, from their threads.

    Args:
        moved: so many bytes are in part files.
        landed: pieces have all their bytes and the right checksum; their files as they were on the host.
        wrong: a piece came with a wrong checksum.
        trouble: this piece's file will not come.
        fail: of something that ends the pull.
    """

    moved: Callable[[int], None]
    landed: Callable[[Sequence[tuple[Piece, File]]], None]
    wrong: Callable[[Piece], None]
    trouble: Callable[[Piece, Trouble], None]
    fail: Callable[[HsopsError], None]


@dataclass(eq=False)
class _Stream:
    """One of the streams: opened again when it is lost."""

    work: Callable[[_Stream], None]
    number: int
    state: str = "opening"
    bytes: int = 0
    lost: int = 0
    refused: bool = False  # the host did not let it in: it ends, the others go on
    worker: Worker = field(init=False)

    def __post_init__(self) -> None:
        self.worker = Worker(lambda: self.work(self), f"fetch-{self.number}")
        self.worker.start()


class _LostError(Exception):
    """A line was lost. ``progress``: it had brought something; ``begun``: it had been opened."""

    def __init__(self, error: UnreachableError, *, progress: bool, begun: bool) -> None:
        super().__init__(error.message)
        self.error, self.progress, self.begun = error, progress, begun


class Pool:
    """The threads of the streams.

    Args:
        ways: how lines to the host are opened.
        host: its name.
        folder: the local one.
        pieces: what is to come.
        streams: how many at once.
        sums: the kind of checksum of pieces.
        always: also of files whose checksum the manifest has.
        stop: set when nothing more is to come.
        results: told what comes.
    """

    def __init__(
        self,
        ways: Ways,
        host: str,
        folder: Folder,
        pieces: Pieces,
        *,
        streams: Streams,
        sums: str,
        always: bool,
        stop: threading.Event,
        results: Results,
    ) -> None:
        self._ways, self._host, self._folder, self._pieces = ways, host, folder, pieces
        self._sums, self._always, self._stop, self._results = sums, always, stop, results
        small = pieces.closed and pieces.total < SMALL * pieces.files
        self._pace = Pace(streams, pieces.total if pieces.closed else None, far=ways.far, small=small)
        self._lock, self._opening = threading.Lock(), threading.Semaphore(FAR_OPENING if ways.far else OPENING)
        self._streams: list[_Stream] = []
        self.notes: queue.SimpleQueue[Event] = queue.SimpleQueue()  # for people
        self._fewest = self._pace.most  # streams that the host let in
        self.lost = self.most = 0  # streams: how often one was, how many were there at once
        self.last_loss: UnreachableError | None = None  # of a stream that gave up; the others go on

    @property
    def states(self) -> StreamStates:
        """What each does."""
        return StreamStates(tuple((s.state, s.bytes, s.lost) for s in self._streams))

    @property
    def flowing(self) -> int:
        """Through how many something comes."""
        return sum(s.state == "flowing" and s.worker.is_alive() for s in self._streams)

    def man(self, moved: int) -> Worker | None:
        """Have as many as are wanted; returns one that lives, None: all have ended.

        Args:
            moved: bytes that came so far.
        """
        living = [s for s in self._streams if s.worker.is_alive()]
        self.check()
        flowing = sum(s.state in ("flowing", "idle") for s in living)
        with self._lock:
            wanted = self._pace.look(time.monotonic(), moved, flowing)
        gave_up = sum(s.state == "lost" and not s.worker.is_alive() for s in self._streams)
        while len(living) + gave_up < wanted and (self._pieces.waits or not self._streams):
            living.append(_Stream(self._work, len(self._streams)))
            self._streams.append(living[-1])
        self.most = max(self.most, len(living))
        return living[0].worker if living else None

    def check(self) -> None:
        """Raise what a stream's thread raised."""
        for stream in self._streams:
            stream.worker.check()

    def join(self) -> None:
        """After ``stop``: none writes any more."""
        for stream in self._streams:
            stream.worker.join(2 * TICK_S)  # one that waits for a dead link is left to the end of the process

    def _work(self, stream: _Stream) -> None:
        failures = 0
        while not self._stop.is_set() and failures <= RETRIES and not self._pieces.over and not self._surplus(stream):
            if self._pieces.waits:
                failures = self._try_line(stream, failures)
            else:
                stream.state = "idle"
                self._pieces.wait(TICK_S)
        stream.state = "lost" if failures > RETRIES else "over"

    def _surplus(self, stream: _Stream) -> bool:
        """It was not let in, or there are as many without it as are wanted."""
        earlier = sum(s.worker.is_alive() and not s.refused for s in self._streams[: stream.number])
        return stream.refused or earlier >= self._pace.wanted

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
            self._results.fail(error)
        except OSError as error:
            self._results.fail(local_error(error, self._folder.path))
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
                line = self._ways.open(self.notes.put)
            except BaseException:
                self._opening.release()
                raise
            with closing(line):
                hooks = self._hooks(stream, opening)
                receiver = Receiver(line, self._folder, hooks, self._host, sums=self._sums, always=self._always)
                try:
                    receiver.run(self._stop)
                finally:
                    self._opened(opening)
        except UnreachableError as error:
            progress = receiver is not None and (receiver.settled > 0 or receiver.moved >= PROGRESS)
            raise _LostError(error, progress=progress, begun=receiver is not None and receiver.begun) from None
        finally:
            self._pieces.give_back(receiver.rest() if receiver else ())

    def _opened(self, opening: threading.Event) -> None:
        if not opening.is_set():
            opening.set()
            self._opening.release()

    def _is_one_too_many(self, stream: _Stream) -> bool:
        """A stream more, that the host does not let in, while others flow: then there are no more than the others, of
        which some may be at the door still.
        """
        if not self.flowing or stream.number < self._pace.least:
            return False
        with self._lock:
            stream.refused, before = True, self._fewest
            others = sum(s.worker.is_alive() and not s.refused for s in self._streams)
            self._pace.limit(others, time.monotonic())
            self._fewest = most = min(before, self._pace.most)
            if most < before:  # it is tried again, and told once
                self.notes.put(Note(f"the host lets in no more than {most} streams for now", self._host))
        return True

    def _lose(self, error: UnreachableError, failures: int) -> None:
        if isinstance(error, HostKeyError | AuthenticationError):
            self._results.fail(error)
            return
        with self._lock:
            self.lost += 1
            self.last_loss = error
        again = f"opened again ({failures} of {RETRIES})" if failures <= RETRIES else "given up"
        self.notes.put(Note(f"a stream was lost: {error.message}; {again}", self._host, "warn"))
        if failures >= DOUBT:
            self._ways.shut(error, self.notes.put)
        if failures <= RETRIES:
            self._stop.wait(PAUSE_S * 2 ** (failures - 1))

    def _hooks(self, stream: _Stream, opening: threading.Event) -> Hooks:
        def take(wait: bool) -> tuple[Piece, ...]:
            self._opened(opening)
            stream.state = "flowing"
            return self._take(stream, wait=wait)

        def moved(count: int) -> None:
            stream.bytes += count
            self._results.moved(count)

        return Hooks(take, moved, self._results.landed, self._results.wrong, self._results.trouble)

    def _take(self, stream: _Stream, *, wait: bool) -> tuple[Piece, ...]:
        until = time.monotonic() + IDLE_S
        while not self._stop.is_set() and not self._surplus(stream):
            if taken := self._pieces.take(self._pace.wanted):
                return taken
            if not wait or self._pieces.over or time.monotonic() > until:
                break
            stream.state = "idle"
            self._pieces.wait(TICK_S)
        return ()
