"""A job of Slurm that a run lives in: what Slurm says of it, and what that means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?\Z")
_MEMORY = re.compile(r"exceeded .{0,20}memory limit|oom.kill|out of memory", re.IGNORECASE)
_HELD = ("JobHeldUser", "JobHeldAdmin")
# pending for these it waits for ever, until somebody changes something (squeue(1), JOB REASON CODES)
_NEVER = (
    *("PartitionTimeLimit", "PartitionNodeLimit", "PartitionDown", "PartitionInactive", "BadConstraints"),
    *("DependencyNeverSatisfied", "QOSMaxWallDurationPerJobLimit", "AssocMaxWallDurationPerJobLimit", "InvalidAccount"),
    *("InvalidQOS", "AccountNotAllowed", "QOSNotAllowed", "JobLaunchFailure", "launch_failed_requeued_held"),
)


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a run, as the host's agent found it.

    Args:
        id: Slurm's; empty while sbatch's answer is not known.
        state: Slurm's word: ``PENDING``, ``RUNNING``, ``TIMEOUT`` ...
        reason: why it waits or ended, Slurm's word; empty for none.
        node: where it runs or ran.
        partition: the queue.
        exit: Slurm's ``code:signal``.
        limit: its time limit, as Slurm prints it.
        restarts: how often it was requeued.
        over: it has ended for good.
        said: the end of its own output, once it is over: Slurm's words, not the server's.
        place, of: in the queue of its partition, from 1; 0 when it does not wait, or nobody knows.
        starts: when Slurm means to start it, seconds since the epoch; None when it does not say.
        on_hold: nothing starts it until somebody releases it, whatever the reason's word is.
        trouble: why Slurm could not be asked now; then the rest is as it was last.
        bin: the folder of Slurm's commands; empty: the PATH.
    """

    id: str
    state: str
    reason: str = ""
    node: str = ""
    partition: str = ""
    exit: str = ""
    limit: str = ""
    restarts: int = 0
    over: bool = False
    said: str = ""
    place: int = 0
    of: int = 0
    starts: float | None = None
    on_hold: bool = False
    trouble: str = ""
    bin: str = ""

    @property
    def memory(self) -> bool:
        """It took more memory than it may. Without task/cgroup that is FAILED 0:9, and a line of slurmstepd's."""
        return self.state == "OUT_OF_MEMORY" or (self.state == "FAILED" and bool(_MEMORY.search(self.said)))

    @property
    def last_words(self) -> str:
        """The last line of its own output."""
        return next((line.strip() for line in reversed(self.said.splitlines()) if line.strip()), "")[:300]

    @property
    def held(self) -> bool:
        """Nothing will start it until somebody releases it."""
        return not self.over and (self.on_hold or self.reason in _HELD)

    @property
    def suspended(self) -> bool:
        """Its processes are stopped, by Slurm, and keep their node; nobody can look into it meanwhile."""
        return self.state == "SUSPENDED" and not self.over

    @property
    def hopeless(self) -> bool:
        """It waits for what does not come by itself."""
        return not self.over and (self.held or self.reason in _NEVER)

    @property
    def cause(self) -> str:
        """Why Slurm ended it, in a sentence; empty when it did not, or when the server ended by itself."""
        if self.memory:
            return f"job {self.id} took more memory than it may ({self.state}, exit {self.exit or '?'})"
        told = _CAUSES.get(self.state, "").format(limit=self.limit or "?", node=self.node or "?")
        return told and f"{f'job {self.id}' if self.id else 'its job'} {told}"

    @property
    def fix(self) -> str:
        """What to do about ``cause``, or about a wait without an end; empty for nothing."""
        if self.suspended:
            return f"scontrol resume {self.id}, by whoever may, or wait until Slurm does it; or hsops stop"
        if self.held:
            return f"scontrol release {self.id}, by whoever may; or hsops stop"
        if self.hopeless:
            return "correct servers.<name>.slurm in inventory.yaml; hsops stop; hsops launch"
        if self.memory:
            return "raise servers.<name>.slurm.mem, then hsops launch"
        return _FIXES.get(self.state, "")

    @property
    def lingers(self) -> tuple[str, str]:
        """Of one that was cancelled and is not over: why that may be, and what to do."""
        if not self.id:
            return "sbatch was cut off; should Slurm still take it, it ends as soon as it starts", "hsops stop again"
        why = f"an epilog still runs on {self.node or 'its node'}, or a process there outlives SIGKILL"
        return why, f"squeue -j {self.id} on the login node; when it is gone: the same again"

    def __str__(self) -> str:
        """``job 12 PENDING (Resources), 2nd of 5 in gpu``; ``job 12 RUNNING on node3``."""
        known = f"job {self.id or 'without a number yet'} {self.state}"
        if self.state == "NOT_SUBMITTED":
            known = f"a job that Slurm {'never took' if self.over else 'does not know, and may still take'}"
        if self.trouble:
            return f"{known} when it was last known: {self.trouble}"
        if self.state in ("RUNNING", "SUSPENDED") or self.over:
            ended = f", exit {self.exit}" if self.over and self.exit else ""
            return known + (f" on {self.node}" if self.node else "") + ended
        why = f" ({self.reason})" if self.reason else ""
        return (
            known
            + why
            + (
                f", number {self.place} of {self.of} waiting in {self.partition}"
                if self.place and not self.hopeless
                else ""
            )
        )


_CAUSES = {
    "TIMEOUT": "reached its time limit of {limit} (TIMEOUT)",
    "NODE_FAIL": "lost its node {node} (NODE_FAIL)",
    "PREEMPTED": "gave way to a job of higher priority (PREEMPTED)",
    "DEADLINE": "reached its deadline (DEADLINE)",
    "BOOT_FAIL": "had a node that did not boot (BOOT_FAIL)",
    "CANCELLED": "was cancelled (CANCELLED)",
    "NOT_SUBMITTED": "was never taken by Slurm: sbatch was cut off",
}
_FIXES = {
    "TIMEOUT": "raise servers.<name>.slurm.time, then hsops launch: the same extract again continues",
    "NODE_FAIL": "hsops launch; the same extract again continues",
    "PREEMPTED": "hsops launch; the same extract again continues; slurm.requeue: true lets Slurm start it again",
}


def parse_job(raw: Mapping[str, Any] | None) -> Job | None:
    """As the agent tells it; None for a run that is no job."""
    if not raw:
        return None
    known = {name: raw[name] for name in Job.__dataclass_fields__ if raw.get(name) is not None}
    return Job(**{"id": "", "state": "UNKNOWN", **known})


def seconds_of(limit: str) -> float | None:
    """Slurm's time limit in seconds: ``90`` (minutes), ``90:00``, ``4:00:00``, ``2-0``, ``2-12:00``; None: no end.

    Raises:
        ValueError: it is none.
    """
    if limit.upper() in ("UNLIMITED", "INFINITE"):
        return None
    match = _TIME.match(limit)
    if not match:
        raise ValueError(
            f"{limit!r} is no time of Slurm's: minutes, minutes:seconds, hours:minutes:seconds, days-hours ..."
        )
    days, *rest = (int(part) if part else None for part in match.groups())
    first, second, third = rest
    assert first is not None
    if days is not None:
        return 86400.0 * days + 3600 * first + 60 * (second or 0) + (third or 0)
    if third is not None:
        return 3600.0 * first + 60 * (second or 0) + third
    return 60.0 * first + (second or 0)
