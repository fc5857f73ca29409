"""How many streams: more while that brings more bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hsops.core.errors import UsageError

GAIN = 1.1  # more streams must bring so much more
LOOK_S = 1.0  # how long a number of streams is watched before it is judged
AGAIN_S = 30.0  # after so long it is tried whether more streams bring more by now
FIRST = 16 << 20  # bytes that are worth a connection


@dataclass(frozen=True, slots=True)
class Streams:
    """How many at once: at least ``least`` where the work is worth them, at most ``most``."""

    least: int
    most: int


def parse_streams(text: str) -> Streams:
    """``8`` or ``2..8``.

    Raises:
        UsageError: something else.
    """
    found = re.fullmatch(r"(\d{1,2})(?:\.\.(\d{1,2}))?", text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most <= 64:
        raise UsageError(f"--streams {text!r} is not N or MIN..MAX, from 1 to 64", fix="--streams 4, or --streams 2..8")
    return Streams(least, most)


class Pace:
    """Decides on the number of streams. Pure: the clock is an argument.

    Args:
        streams: the limits.
        total: bytes that will come; None when more may follow.
        far: a round trip takes long: to try fewer first would cost more than all of them do.
        small: thousands of small files, of which each costs this process more than it costs the line.
    """

    def __init__(self, streams: Streams, total: int | None, *, far: bool = False, small: bool = False) -> None:
        worth = streams.most if total is None else max(1, -(-total // FIRST))
        if small and not far:
            worth = min(worth, streams.least)
        self.most = self._top = min(streams.most, worth)
        self.least = min(streams.least, self.most)
        self.wanted = self.most if far else self.least
        self._since: tuple[float, int] | None = None  # when the present number began to flow, and the bytes by then
        self._before: tuple[int, float] | None = None  # the smaller number that was given up, and its rate
        self._settled = 0.0
        self._limited = 0.0  # when the host let no more in

    def look(self, now: float, moved: int, flowing: int) -> int:
        """How many streams there should be.

        Args:
            now: seconds, monotonic.
            moved: bytes that came so far.
            flowing: streams that have begun.
        """
        if self.most < self._top and now - self._limited >= AGAIN_S:
            self.most = self._top
        if flowing < self.wanted:
            self._since = None
            return self.wanted
        if self._since is None:
            self._since = now, moved
        then, by_then = self._since
        if now - then < LOOK_S:
            return self.wanted
        self._judge(now, (moved - by_then) / (now - then))
        return self.wanted

    def limit(self, most: int, now: float) -> None:
        """The host's sshd let no more in; after ``AGAIN_S`` it may: it also drops some while many log in."""
        self.most, self._limited = min(self.most, max(self.least, most)), now
        self.wanted, self._before = min(self.wanted, self.most), None

    def _judge(self, now: float, rate: float) -> None:
        self._since = None
        if self._before is not None and rate < self._before[1] * GAIN:
            self.wanted, self._before, self._settled = self._before[0], None, now
        elif self.wanted < self.most and (not self._settled or now - self._settled >= AGAIN_S):
            self._before = self.wanted, rate
            self.wanted = min(self.most, 2 * self.wanted)
        else:
            self._before, self._settled = None, self._settled or now
