"""Rules about a run that is a job of Slurm: what the scheduler knows that no process can tell."""

from __future__ import annotations

from hsops.diagnose import cite
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.verdict import Finding, Verdict


def queued(ev: Evidence) -> Verdict | None:
    """It has not been started yet, or is to be started again."""
    run = ev.run
    if run is None or run.job is None or not run.pending:
        return None
    return Verdict(
        "queued",
        "high",
        f"run {run.id} has no place yet: {run.job}",
        (Finding("slurm", str(run.job)),),
        remedy=run.job.fix.replace("<name>", run.server) or "hsops launch --wait-healthy waits for its place",
    )


def suspended(ev: Evidence) -> Verdict | None:
    """Slurm has stopped its processes: neither a hang, nor somebody's SIGSTOP."""
    run = ev.run
    if run is None or run.job is None or not run.job.suspended:
        return None
    said = f"{run.server} stands still: {run.job}"
    return Verdict("job-suspended", "high", said, (Finding("slurm", str(run.job)),), remedy=run.job.fix)


def ended_by_scheduler(ev: Evidence) -> Verdict | None:
    """Slurm ended it: the signals that its processes got say nothing of why."""
    run = ev.run
    if run is None or run.job is None or not run.job.over or run.phase == "stopped" or not run.job.cause:
        return None
    return Verdict(
        "job-ended-by-scheduler",
        "high",
        f"{run.server} ended: {run.job.cause}",
        (Finding("slurm", str(run.job)), *cite.everything(ev)),
        remedy=run.job.fix.replace("<name>", run.server) or "hsops launch --wait-healthy",
    )
