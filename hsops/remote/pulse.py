"""How a dead link is noticed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pulse:
    """Seconds between questions to the host, and until an unanswered one means that the link is dead."""

    every: float = 5.0
    lost_after: float = 15.0
