"""No more bytes a second than somebody allowed."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

from hsops.core.errors import UsageError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_rate(text: str) -> float:
    """Bytes a second of ``50M``, ``1.5G``, ``200K``; 0 of an empty text: no limit.

    Raises:
        UsageError: something else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", text.strip().upper())
    if text and (not found or float(found[1]) <= 0):
        raise UsageError(f"--max-rate {text!r} is no rate", fix="--max-rate 50M, for 50 MiB a second")
    return float(found[1]) * _UNITS[found[2]] if found else 0.0


class Throttle:
    """Holds its callers back, all together, to a rate.

    Args:
        rate: bytes a second; 0: no limit.
        now: a monotonic clock, seconds.
        pause: waits so many seconds, or less when there is something else to do.
    """

    def __init__(
        self, rate: float, pause: Callable[[float], object], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._pause, self._now = rate, pause, now
        self._free = now()  # when what was taken so far is paid for
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """So many bytes came: return when they may have."""
        if not self._rate:
            return
        with self._lock:
            self._free = max(self._free, self._now()) + count / self._rate
            left = self._free - self._now()
        if left > 0:
            self._pause(left)
