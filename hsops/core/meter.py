"""Rates over the last seconds, and the time to go."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from hsops.core.events import Progress


class Meter:
    """Turns a growing amount into progress events.

    Args:
        task, unit, total: as in ``Progress``.
        begun: how much was done before, which is no part of any rate.
        now: a monotonic clock, seconds.
    """

    def __init__(
        self,
        task: str,
        unit: str,
        total: float,
        *,
        begun: float = 0.0,
        window: float = 10.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.task, self.unit, self.total, self.window, self._now = task, unit, total, window, now
        self._seen: deque[tuple[float, float]] = deque([(now(), begun)])

    def at(self, done: float, detail: str = "") -> Progress:
        """The event for ``done`` so far; the rate is over the last ``window`` seconds."""
        now = self._now()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= self.window:
            self._seen.popleft()
        (then, before), elapsed = self._seen[0], now - self._seen[0][0]
        rate = (done - before) / elapsed if elapsed > 0 else 0.0
        eta = (self.total - done) / rate if rate > 0 and self.total and now > then else None
        return Progress(self.task, done, self.total, self.unit, rate=rate, eta_s=eta, detail=detail)
