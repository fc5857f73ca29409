"""Deadlines: every remote call has three."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """How long a remote call may take, in seconds.

    Args:
        connect: to reach and authenticate.
        idle: between two bytes of output.
        total: for the whole call; None for streams that a person ends (``logs -f``, a launch under watch).
    """

    connect: float = 15.0
    idle: float = 60.0
    total: float | None = 120.0


QUICK = Deadline(idle=30.0, total=30.0)
FOLLOW = Deadline(idle=30.0, total=None)  # the agent sends a heartbeat event at least every 5 s
