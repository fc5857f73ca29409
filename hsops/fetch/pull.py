"""One pull: streams that bring pieces, a committer behind them, and what became of each file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hsops.core.errors import HsopsError
from hsops.core.events import Emit
from hsops.core.inventory import Channel
from hsops.core.meter import Meter
from hsops.core.units import counted
from hsops.fetch.commit import Committer
from hsops.fetch.folder import Folder
from hsops.fetch.line import Ways
from hsops.fetch.pace import Streams
from hsops.fetch.pieces import Piece, Pieces
from hsops.fetch.plan import File
from hsops.fetch.pool import PROGRESS, TICK_S, Pool, Results
from hsops.fetch.throttle import Throttle
from hsops.fetch.trouble import Trouble, not_as_told

TRIES = 3  # of a piece that comes with a wrong checksum


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
        check: called twice a second; what it raises ends the fetch, and what came is kept.
    """

    streams: Streams
    way: Channel = "auto"
    sums: str = "xxh3"
    always: bool = False
    rate: float = 0.0
    recheck: bool = False
    follow: bool = False
    evict: bool = False
    check: Callable[[], None] = lambda: None


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


class _Pull:
    """What the streams and the committer of one pull share."""

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
        self.folder, self.pieces, self._check = folder, pieces, wish.check
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._throttle = Throttle(wish.rate, self._stop.wait)
        self._moved = self._bad = 0
        self._troubles: dict[str, tuple[File, Trouble]] = {}  # by part file: another version may come all the same
        self._error: HsopsError | None = None  # fatal: everybody stops
        self._committer = Committer(folder, wish.sums, self._fail, self._refused, durable)
        results = Results(self._came, self._landed, self._wrong, self._trouble, self._fail)
        how = {"streams": wish.streams, "sums": wish.sums, "always": wish.always}
        self._pool = Pool(ways, host, folder, pieces, stop=self._stop, results=results, **how)  # type: ignore[arg-type]

    def watch(self, emit: Emit) -> None:
        """Start threads as the pace wants them, tell the progress, until all is done."""
        self._committer.start()
        meter, states = Meter("fetch", "bytes", self.pieces.total), None
        while not self._stop.is_set() and not self.pieces.over:
            self._committer.check()
            living = self._pool.man(self._moved)
            if not living:
                break  # all gave up
            living.join(TICK_S / 5 if self.pieces.total < PROGRESS else TICK_S)
            self._check()
            if self._moved < self.pieces.total:
                self._tell(meter, emit)
            now = self._pool.states
            if now != states:
                emit(now)
                states = now
        self._pool.check()
        self._committer.finish()
        self._committer.check()
        self._tell(meter, emit)

    def end(self) -> None:
        """On every way out: no thread writes any more, and what arrived whole is committed."""
        self._stop.set()
        self._pool.join()
        self._committer.finish()

    def result(self) -> Pulled:
        """What was done.

        Raises:
            HsopsError: why it could not be done to the end.
        """
        error = self._error or (self._pool.last_loss if not self.pieces.over else None)
        if error is not None:
            whole = f"{self._committer.whole} of {counted(self.pieces.files, 'file')}"
            here = f"{whole} came whole and are kept; a rerun continues"
            error.why = f"{error.why}; {here}" if error.why else here
            raise error
        troubles = tuple(trouble for file, trouble in self._troubles.values() if self.pieces.is_latest(file))
        return Pulled(self._committer.whole, self._moved, self._pool.lost, self._bad, self._pool.most, troubles)

    def _came(self, count: int) -> None:
        with self._lock:
            self._moved += count
        self._throttle.take(count)

    def _landed(self, landed: Sequence[tuple[Piece, File]]) -> None:
        for piece, file in landed:
            if not piece.alone:
                self._committer.grow(file, piece.start, piece.end)
        ended = self.pieces.came(piece for piece, _ in landed)
        latest = list[tuple[File, bool]]()
        for (piece, file), is_last in zip(landed, ended, strict=True):
            if not is_last or file.part in self._troubles:
                continue
            if self.pieces.is_latest(file):
                latest.append((file, piece.alone))
            else:
                self._drop(file)
        self._committer.put(latest)
        self.pieces.done(len(landed))  # last: the committer ends when it is over

    def _drop(self, file: File) -> None:
        self.folder.drop(file.part)
        self._committer.forget(file.part)

    def _wrong(self, piece: Piece) -> None:
        """Sent again from its first byte, a few times."""
        with self._lock:
            self._bad += 1
        piece.tries, piece.at, piece.digest = piece.tries + 1, piece.start, None
        if piece.tries < TRIES:
            self.pieces.give_back((piece,))
            return
        file = piece.transfer.file
        self._drop(file)
        self._trouble(piece, not_as_told(file))

    def _refused(self, file: File, trouble: Trouble) -> None:
        with self._lock:
            self._bad += trouble.code == "checksum"
            self._troubles[file.part] = file, trouble

    def _trouble(self, piece: Piece, trouble: Trouble) -> None:
        with self._lock:
            self._troubles[piece.transfer.file.part] = piece.transfer.file, trouble
        self.pieces.abandon(piece)

    def _fail(self, error: HsopsError) -> None:
        with self._lock:
            self._error = self._error or error
        self._stop.set()

    def _tell(self, meter: Meter, emit: Emit) -> None:
        while not self._pool.notes.empty():
            emit(self._pool.notes.get())
        flowing = self._pool.flowing
        meter.total = self.pieces.total if self.pieces.closed else 0  # nobody knows what will be written yet
        detail = f"{self._committer.whole} of {counted(self.pieces.files, 'file')}"
        emit(meter.at(self._moved, f"{detail} · {counted(flowing, 'stream')}" if flowing else detail))
