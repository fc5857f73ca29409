"""Slow or stuck? A launch is stalled when nothing that a working server moves has moved for long enough. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# below these a change is noise: a spinning process faults and allocates a little, too
MOVES = {
    "milestone": 1,  # steps reached, counted over ranks
    "log": 1,  # messages that no health probe caused; a progress bar's redraws count
    "disk": 1 << 20,  # bytes that the tree has read from storage, also through page faults
    "faults": 16,  # major page faults: a memory-mapped checkpoint being read
    "memory": 16 << 20,  # resident bytes, up or down
    "gpu": 16,  # MiB of GPU memory in use, up or down
}
FLOOR_S = 120.0  # with good runs to compare with; a step of a large model can be silent for a minute
FLOOR_UNKNOWN_S = 300.0  # without: post-processing of weights is silent for minutes


@dataclass(frozen=True, slots=True)
class Signs:
    """The last value of each sign of work and when it last moved, in seconds of the watcher's clock.

    ``compiling`` counts as moving for as long as a compiler runs below the server.
    """

    values: Mapping[str, float]
    moved: Mapping[str, float]
    compiling: float

    def seen(self, name: str, value: float, now: float) -> Signs:
        """With a fresh value of one sign."""
        old = self.values.get(name)
        if old is not None and abs(value - old) < MOVES[name]:
            return self
        return Signs({**self.values, name: value}, {**self.moved, name: now}, self.compiling)

    def compiler(self, now: float) -> Signs:
        """With a compiler seen at work."""
        return Signs(self.values, self.moved, now)

    def silent_s(self, now: float) -> float:
        """Seconds since anything moved."""
        return now - max([self.compiling, *self.moved.values()])


def nothing_seen(now: float) -> Signs:
    """At the start of a watch."""
    return Signs({}, {}, now)


def limit_s(*, floor: float | None, usual: float | None) -> float:
    """How long silence may last: ``max(floor, 2 x usual step)``, in seconds.

    Args:
        floor: as the user asked; None for the default.
        usual: what good runs took for the step under way; None when unknown.
    """
    least = floor if floor is not None else FLOOR_UNKNOWN_S if usual is None else FLOOR_S
    return max(least, 2 * usual if usual is not None else 0.0)
