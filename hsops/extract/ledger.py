"""What the manifest says, as it grows: workers wait here for their sample's line and for room on the host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from hsops.core.dumps import Sample
from hsops.core.errors import HsopsError, SpaceError
from hsops.extract.plan import Capture, RowSize, row_size
from hsops.remote.dumps import News

LEAST_FREE_SHARE = 0.02  # of the file system stays free: a full /dev/shm takes the server down with it
MOST_KEPT_FREE = 1 << 30
PATIENCE_S = 300.0  # while a fetch brings one large dump over a slow line it frees nothing


class TooLargeError(SpaceError):
    """A dump that the whole file system cannot hold: nobody can make room for it."""


class Ledger:
    """Shared by the thread that follows the manifest and the workers. The first fatal error wakes and ends them all.

    Args:
        capture: what a dump holds.
        samples: the manifest so far; tells how large rows are.
        free, total: bytes of the dump file system.
        patience: seconds that it may stay full; they begin anew whenever more of it is free than before.
    """

    def __init__(
        self, capture: Capture, samples: Iterable[Sample], *, free: int, total: int, patience: float = PATIENCE_S
    ) -> None:
        self.capture = capture
        self.error: HsopsError | None = None
        self._size: RowSize | None = row_size(samples)
        self._free, self._total = free, total
        self._patience, self._waiting = patience, 0
        self._moved()
        self._reserved: dict[str, int] = {}
        self._lines: dict[str, tuple[int, Sample]] = {}  # id -> how many lines came for it, the last of them
        self._changed = threading.Condition()

    def apply(self, news: News) -> None:
        """Take in what the follower heard."""
        with self._changed:
            for sample in news.samples:
                count = self._lines.get(sample.id, (0, sample))[0]
                self._lines[sample.id] = (count + 1, sample)
            self._size = row_size(news.samples) or self._size
            if news.space:
                self._free, self._total = news.space
                if self._free > self._most_free:
                    self._moved()
            self._changed.notify_all()

    def fail(self, error: HsopsError) -> None:
        """End everything; the first error counts."""
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()

    @property
    def heard(self) -> bool:
        """Any line came since the start."""
        return bool(self._lines)

    def line(self, id_: str) -> Sample | None:
        """The last line that came for a sample since the start."""
        with self._changed:
            return self._lines[id_][1] if id_ in self._lines else None

    def mark(self, id_: str) -> int:
        """How many lines there are for a sample; ``wait`` waits for one more."""
        with self._changed:
            return self._lines[id_][0] if id_ in self._lines else 0

    def wait(self, id_: str, mark: int, patience: float) -> Sample | None:
        """The sample's next line after ``mark``; None when none came in ``patience`` seconds.

        Raises:
            HsopsError: everything was ended.
        """

        def there() -> bool:
            return id_ in self._lines and self._lines[id_][0] > mark

        with self._changed:
            self._until(there, patience)
            return self._lines[id_][1] if there() else None

    def admit(self, id_: str, tokens: int) -> None:
        """Wait until the sample's dump has room; without any dump yet, let one pass and learn from it.

        Raises:
            TooLargeError: there is no such room on the whole file system.
            SpaceError: nothing is under way, and nobody makes room.
            HsopsError: everything was ended.
        """
        with self._changed:
            while not self._fits(tokens) and (self._size or self._reserved):
                if self.error is not None:
                    raise self.error
                self._demand_disk(tokens)
                left = None if self._reserved or not self._size else self._patience_left(self._size, tokens)
                self._waiting += 1
                self._changed.wait(left)
                self._waiting -= 1
            self._reserved[id_] = self._size.sample_bytes(tokens, self.capture) if self._size else self._free
            self._moved()

    @property
    def is_short(self) -> bool:
        """Nothing is under way because nothing fits: somebody has to make room."""
        return self._waiting > 0 and not self._reserved

    @property
    def full(self) -> float:
        """The used share of the dump file system, 0 to 1."""
        return 1 - self._free / self._total if self._total else 0.0

    def leave(self, id_: str, written: int) -> None:
        """The sample is settled; what it wrote counts as gone until the host tells its free bytes again."""
        with self._changed:
            self._reserved.pop(id_, None)
            self._free -= written
            self._moved()
            if self._waiting:  # for room; who waits for a line has nothing to look for
                self._changed.notify_all()

    def _fits(self, tokens: int) -> bool:
        if self._size is None:
            return False
        room = self._free - sum(self._reserved.values()) - self._kept_free()
        return self._size.sample_bytes(tokens, self.capture) <= room

    def _demand_disk(self, tokens: int) -> None:
        need = self._size.sample_bytes(tokens, self.capture) if self._size else 0
        if self._total and need > self._total - self._kept_free():
            raise TooLargeError(
                f"not sent: its dump of {need:,} bytes is too large for the dump file system, which has "
                f"{self._total:,} with {self._kept_free():,} kept free; dump_dir on a larger one, or a shorter prompt"
            )

    def _moved(self) -> None:
        self._moved_at, self._most_free = time.monotonic(), self._free

    def _patience_left(self, size: RowSize, tokens: int) -> float:
        """Seconds.

        Raises:
            SpaceError: none.
        """
        need, left = size.sample_bytes(tokens, self.capture), self._moved_at + self._patience - time.monotonic()
        if left > 0:
            return left
        waited = f"and nobody made room in {self._patience:.0f} s"
        raise SpaceError(
            f"the dump file system is full: {self._free:,} bytes free, {need:,} needed for the next sample, {waited}",
            why=f"{self._kept_free():,} bytes are kept free for the server's sake",
            fix="hsops fetch --follow --evict beside it makes room; extract again: it continues",
        )

    def _kept_free(self) -> int:
        return min(int(self._total * LEAST_FREE_SHARE), MOST_KEPT_FREE)

    def _until(self, true: Callable[[], bool], patience: float | None) -> None:
        deadline = None if patience is None else time.monotonic() + patience
        while not true():
            if self.error is not None:
                raise self.error
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            self._changed.wait(left)
