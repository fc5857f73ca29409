"""Progress as a stream of typed events. Features emit, ``render`` shows, ``--json`` writes them as lines.

A feature defines its own events as frozen dataclasses beside its code; ``Note`` and ``Progress`` serve everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened. The class name in kebab case is the event's name in JSON."""

    def as_json(self) -> dict[str, Any]:
        """One JSON line's content."""
        return {"event": kebab(type(self).__name__), **asdict(self)}


@dataclass(frozen=True, slots=True)
class Note(Event):
    """One line worth reading."""

    message: str
    host: str = ""
    level: str = "info"  # info | warn


@dataclass(frozen=True, slots=True)
class Picture(Event):
    """The whole state as a block of lines that a terminal redraws in place; shown nowhere else."""


@dataclass(frozen=True, slots=True)
class Trace(Event):
    """A step that the picture shows anyway: a line in a pipe, an event in JSON, nothing beside a picture."""


@dataclass(frozen=True, slots=True)
class Progress(Event):
    """How far a long thing is.

    Args:
        task: what is under way: ``extract``, ``fetch`` ...
        done, total: in ``unit``; total 0 means unknown.
        unit: ``samples``, ``bytes`` ...
        rate: units a second over the last seconds; 0 when unknown.
        eta_s: seconds to go; None when unknown.
        detail: short further text, such as "0 failed".
    """

    task: str
    done: float
    total: float
    unit: str
    rate: float = 0.0
    eta_s: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Together(Picture):
    """From now on several long things go on at once: a live line each. Until one with no ``tasks``.

    Args:
        tasks: as in ``Progress``, in the order of their lines.
    """

    tasks: tuple[str, ...] = ()


Emit = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """An ``Emit`` for callers that show nothing."""


def kebab(name: str) -> str:
    """``RunStarted`` -> ``run-started``."""
    return "".join(f"-{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))
