"""The host's audit log: who changed what, when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hsops.core.deadline import Deadline
from hsops.remote.agent import Agent

_WALK = Deadline(idle=300.0, total=300.0)  # a chain of a million lines is walked in seconds


@dataclass(frozen=True, slots=True)
class Audit:
    """What ``read_audit`` found.

    Args:
        lines: as the host has them, oldest first; see ``docs/reference/audit.md``.
        total: how many there are in all.
        faults: where the chain breaks, each with its line's number (0: none) and what is wrong with it.
    """

    lines: tuple[dict[str, Any], ...]
    total: int
    faults: tuple[tuple[int, str], ...]


def read_audit(agent: Agent, *, limit: int, verify: bool) -> Audit:
    """The last lines of the host's audit log; with ``verify`` the whole chain is walked, on the host."""
    found = agent.call("audit-read", deadline=_WALK, limit=limit, verify=verify)
    faults = tuple((fault["line"], fault["what"]) for fault in found["faults"])
    return Audit(tuple(found["lines"]), found["total"], faults)
