"""Rows in host memory that several writer threads share, and the slots they lie in."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

POLL_S = 0.5  # how often a wait looks whether those it waits for are still there


class Block:
    """Consecutive rows of a pass, in host memory once ``wait`` has returned.

    Made with one hold, which belongs to whoever asked for it. With the last hold the memory goes back.

    Args:
        first: row of the pass that the block begins with.
        count: of rows.
        views: the rows' bytes, one view for each tensor of states.
        wait: blocks until the bytes are there; without the interpreter's lock.
        freed: called once, when nobody reads the memory any more.
    """

    def __init__(
        self,
        first: int,
        count: int,
        views: Sequence[memoryview],
        *,
        wait: Callable[[], None] | None = None,
        freed: Callable[[], None],
    ) -> None:
        self.first, self.count, self.views = first, count, views
        self._wait, self._freed = wait, freed
        self._holds, self._lock = 1, threading.Lock()

    def wait(self) -> None:
        """Return when the bytes are there."""
        if self._wait is not None:
            self._wait()

    def rows(self, begin: int, end: int) -> list[memoryview]:
        """The bytes of the pass's rows ``begin`` to ``end`` - 1, of each tensor."""
        sizes = [len(view) // self.count for view in self.views]
        begin, end = begin - self.first, end - self.first
        return [view[begin * size : end * size] for view, size in zip(self.views, sizes, strict=True)]

    def hold(self) -> None:
        """One reader more."""
        with self._lock:
            self._holds += 1

    def done(self) -> None:
        """One reader less."""
        with self._lock:
            self._holds -= 1
            last = self._holds == 0
        if last:
            self._freed()


class Slots:
    """The numbers of a ring's slots: taken by dispatchers, given back by writers, in any order.

    Args:
        count: how many there are.
    """

    def __init__(self, count: int) -> None:
        self._free = deque(range(count))
        self._changed = threading.Condition()

    def take(self, tick: Callable[[], None]) -> int:
        """A free slot; waits for one as long as it takes, because what is bounded is how long a *pass* waits.

        Args:
            tick: called every half second of waiting: revives a dead writer, or nothing would ever come back.
        """
        while True:
            with self._changed:
                if self._free or self._changed.wait_for(lambda: self._free, POLL_S):
                    return self._free.popleft()
            tick()

    def give(self, slot: int) -> None:
        """Nobody reads it any more."""
        with self._changed:
            self._free.append(slot)
            self._changed.notify()
