"""The processes on a host that nobody looks after, through the agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hsops.core.deadline import Deadline
from hsops.core.errors import AgentError, UnreachableError
from hsops.core.orphans import Orphan, parse_orphan
from hsops.core.proof import Proof, parse_proof
from hsops.remote.agent import Agent
from hsops.remote.lock import Lock
from hsops.remote.runs import GPU_S, goes_on, on_full_disk, stop_deadline

_LOOK = Deadline(idle=30.0, total=30.0)  # nvidia-smi may take its time twice
_FIXES = {
    "no-such-process": "hsops status lists the orphans",
    "not-an-orphan": "hsops status lists the orphans; end anything else yourself: kill PID on the host",
    "changed-meanwhile": "hsops status lists the orphans as they are now",
}


@dataclass(frozen=True, slots=True)
class Orphans:
    """Those of a host. ``blind``: why nothing is known of GPU memory there; ``no_gpu_tool``: it has no nvidia-smi."""

    found: tuple[Orphan, ...]
    blind: str
    no_gpu_tool: bool


@dataclass(frozen=True, slots=True)
class StoppedOrphan:
    """What became of one. Fields as of ``hsops.remote.runs.Stopped``."""

    orphan: Orphan
    ended: tuple[dict[str, Any], ...]
    left: tuple[dict[str, Any], ...]
    seconds: float
    proof: Proof
    beside: str
    unwritten: tuple[str, ...] = ()


def orphans(agent: Agent, pid: int | None = None) -> Orphans:
    """All of them, or the one that is named.

    Raises:
        AgentError: ``pid`` is no orphan (``no-such-process``, ``not-an-orphan``).
    """
    try:
        raw = agent.call("orphans", deadline=_LOOK, pid=pid)
    except AgentError as error:
        raise _explained(error) from None
    blind = raw["could_not"] or {"why": "", "message": ""}
    return Orphans(tuple(map(parse_orphan, raw["orphans"])), blind["message"], blind["why"] == "not-found")


def stop_orphan(
    lock: Lock, orphan: Orphan, *, grace: float, keep: bool = False, force: bool = False, gpu_s: float = GPU_S
) -> StoppedOrphan:
    """End an orphan, if it still is the process that was shown, and what is below it.

    Args:
        grace, keep, force, gpu_s: as of ``hsops.remote.runs.stop_run``.

    Raises:
        AgentError: it is another process by now (``changed-meanwhile``), or not ours to end (``not-yours``).
        LockedError: somebody else holds the lock.
    """
    what, deadline = f"orphan {orphan.pid}", stop_deadline(grace, gpu_s)
    asked: dict[str, Any] = {"pid": orphan.pid, "start": orphan.start, "grace": grace, "gpu_s": gpu_s}
    try:
        found = lock.call("orphan-stop", what=what, keep=keep, beside=force, deadline=deadline, **asked)
    except UnreachableError as error:
        raise goes_on(error) from None
    except AgentError as error:
        raise _explained(on_full_disk(error)) from None
    words = found["beside"]["words"] if found["beside"] else ""
    left, ended = tuple(found["left"]), tuple(found["ended"])
    return StoppedOrphan(
        parse_orphan(found["orphan"]),
        ended,
        left,
        found["seconds"],
        parse_proof(found["proof"]),
        words,
        tuple(found["unwritten"]),
    )


def _explained(error: AgentError) -> AgentError:
    error.fix = error.fix or _FIXES.get(error.code, "")
    return error
