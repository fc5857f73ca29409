"""Progress events for people: one live line on a terminal, a plain line now and then in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from hsops.core.events import Progress
from hsops.core.units import clock, size

EVERY_S = 10.0  # in a pipe: often enough to see that it lives, seldom enough to read the log afterwards


def line(event: Progress) -> str:
    """``extract  6,212 / 10,000 samples · 4,310 samples/s · 14:50 to go · 0 failed``."""
    return f"{event.task}  " + " · ".join(_parts(event))


class Pace:
    """Decides which progress events are worth a line in a pipe: the first, one every ten seconds, the last.

    Args:
        now: a monotonic clock, seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._last = now, dict[str, float]()

    def wants(self, event: Progress) -> bool:
        """Whether ``event`` is due; counts it as shown when it is."""
        now, last = self._now(), self._last.get(event.task)
        complete = event.total > 0 and event.done >= event.total
        if last is not None and now - last < EVERY_S and not complete:
            return False
        self._last[event.task] = now
        return True


def _parts(event: Progress) -> Iterator[str]:
    amount = size if event.unit == "bytes" else _count
    unit = "" if event.unit == "bytes" else f" {event.unit}"
    yield f"{amount(event.done)} / {amount(event.total)}{unit}" if event.total else f"{amount(event.done)}{unit}"
    if event.rate:
        yield f"{amount(event.rate)}{unit}/s"
    if event.eta_s is not None and event.done < event.total:
        yield f"{clock(event.eta_s)} to go"
    if event.detail:
        yield event.detail


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
