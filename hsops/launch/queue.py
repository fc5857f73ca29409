"""A server as a job of Slurm, before it runs: whether there is such a queue, and the wait for a place in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hsops.core.command import Command
from hsops.core.deadline import Deadline
from hsops.core.errors import DeadlineError, HsopsError, UnhealthyError, UnreachableError
from hsops.core.events import Emit, Event
from hsops.core.inventory import ServerSpec
from hsops.core.partitions import SINFO
from hsops.core.runs import Run
from hsops.core.slurm import Job
from hsops.launch.job import judge
from hsops.remote.agent import Agent
from hsops.remote.runs import find_run

LOOK_S, LONGEST_LOOK_S = 1.0, 15.0  # a controller has many users
ASK = Deadline(idle=10.0, total=10.0)  # Slurm's commands wait for minutes when slurmctld does not answer
_TOLD_S = 30.0


@dataclass(frozen=True, slots=True)
class Queued(Event):
    """The job waits: Slurm's ``state`` and ``reason``, its ``place`` among the ``of`` that wait (0: not known).

    ``starts``: when Slurm means to start it, seconds since the epoch, None when it does not say; ``words``: all that in
    words, and why Slurm could not be asked, should that be so.
    """

    job: str
    state: str
    reason: str
    place: int
    of: int
    starts: float | None
    words: str


def check(agent: Agent, server: ServerSpec, usual_s: float | None) -> None:
    """Before anything is submitted: is there a Slurm that answers, with such a queue, and time enough in it?

    Args:
        usual_s: from the launch to healthy in good runs; None when unknown.

    Raises:
        HsopsError: no.
    """
    spec, host = server.slurm, agent.host.name
    program = f"{spec.bin}/sinfo" if spec.bin else "sinfo"
    try:
        done = agent.host.run(Command((program, *SINFO)), deadline=ASK)
    except DeadlineError:
        raise _silent(server, host, f"sinfo gave no answer in {ASK.total:g} s") from None
    said = " ".join(done.stderr.decode(errors="replace").split())
    if done.exit in (126, 127):
        raise HsopsError(
            f"there is no Slurm on {host}: {program} is not found",
            host=host,
            why=f"servers.{server.name} has executor: slurm, and jobs are submitted from its host, a login node",
            fix=f"name the login node in servers.{server.name}.host, or the folder of sbatch in slurm.bin",
        )
    if done.exit:
        raise _silent(server, host, said[-300:] or f"sinfo ended with {done.exit}")
    judge(server, host, done.stdout.decode(errors="replace"), usual_s)


def _silent(server: ServerSpec, host: str, said: str) -> UnreachableError:
    return UnreachableError(
        f"Slurm's controller does not answer: {said}",
        host=host,
        why="nothing can be submitted or cancelled without it; jobs that run go on",
        fix=f"scontrol ping on {host}; ask who runs the cluster; then hsops launch {server.name}",
    )


def wait_for_place(agent: Agent, run: Run, emit: Emit, now: Callable[[], float] = time.monotonic) -> Iterator[Run]:
    """The run again and again, as long as its job waits; tells what has changed, and now and then that it still waits.

    The last one is of a job that runs, or is over.

    Raises:
        UnhealthyError: the job is held, or waits for what does not come by itself.
    """
    told, due, wait = "", 0.0, LOOK_S
    while True:
        job = run.job
        if job is None or not run.pending:
            yield run
            return
        if job.hopeless:
            raise UnhealthyError(f"{run.server} is not started: {job}", host=agent.host.name, why=_why(job),
                                 fix=job.fix.replace("<name>", run.server))  # fmt: skip
        if str(job) != told or now() >= due:
            told, due = str(job), now() + _TOLD_S
            emit(Queued(job.id, job.state, job.reason, job.place, job.of, job.starts, told))
        yield run
        time.sleep(wait)
        wait = min(1.2 * wait, LONGEST_LOOK_S)
        run = find_run(agent, run) or run


def _why(job: Job) -> str:
    return "somebody holds it" if job.held else "it waits for what does not come by itself"
