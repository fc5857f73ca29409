"""The launches of the soak: what is wrong with each, and where."""

from __future__ import annotations

from dataclasses import dataclass

SLOW_S = 40  # longer than the 30 s after which a step that good runs had is called stalled


@dataclass(frozen=True, slots=True)
class Case:
    """One launch. ``fault``: as ``hsops lab up --fault`` takes it; ``stuck``: it must be called stalled."""

    fault: str
    number: int
    stuck: bool

    @property
    def id(self) -> str:
        """For people and the command line."""
        return f"{self.fault}.{self.number}"

    @property
    def stage(self) -> str:
        """The stage of the start that it strikes, as events name it."""
        return (self.fault.partition("@")[2] or "weights").replace("-", " ").replace("warm up", "warm-up")


def _times(count: int, *faults: str, stuck: bool) -> list[Case]:
    return [Case(fault, number, stuck) for fault in faults for number in range(1, count + 1)]


SLOW = [
    *_times(5, "slow-load", "sleepy-load", stuck=False),
    *_times(3, "compile@weights", "compile@kv-cache", stuck=False),
    *_times(2, "compile@http", "compile@warm-up", stuck=False),
]
STUCK = _times(
    1,
    *("stopped-rank@distributed", "stopped-rank@weights", "stopped-rank@http"),
    *("futex-wait@weights", "futex-wait@warm-up"),
    *("busy-wait@weights", "busy-wait@kv-cache", "busy-wait@warm-up"),
    *("lost-collective@kv-cache", "lost-collective@http"),
    stuck=True,
)
