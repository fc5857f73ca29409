"""The agent inside a job of Slurm: a step of it on its compute node, through the login node (``srun --overlap``)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hsops.core.deadline import FOLLOW, Deadline
from hsops.core.errors import AgentError, HsopsError, RemoteError, UnreachableError
from hsops.core.slurm import Job
from hsops.remote.agent import Agent
from hsops.remote.host import Completed
from hsops.remote.started import NotBegunError

_SILENT = re.compile(r"Unable to contact|Connection refused|timed out|Zero Bytes", re.IGNORECASE).search


class JobAgent(Agent):
    """As ``Agent``; but that it cannot get in says nothing of Python or the prefix: mostly the job is over.

    So it is unreachable, as a host is whose link is lost: who follows a run looks at the job again, on the login node.

    Args:
        outside: the agent on the login node.
        job: that runs.
    """

    def __init__(self, outside: Agent, job: Job) -> None:
        own = {"python": outside.python, "state_dir": outside.state_dir, "lock_wait": outside.lock_wait}
        super().__init__(outside.host.behind(step(job)), emit=outside.emit, **own)  # type: ignore[arg-type]
        self._job = job

    def call(self, verb: str, /, *, deadline: Deadline = Deadline(), **params: Any) -> dict[str, Any]:
        with self._inside():
            return super().call(verb, deadline=deadline, **params)

    @contextmanager
    def stream(self, verb: str, /, *, deadline: Deadline = FOLLOW, **params: Any) -> Iterator[Iterator[dict[str, Any]]]:
        with self._inside(), super().stream(verb, deadline=deadline, **params) as events:
            yield events

    @contextmanager
    def tunnel(self, port: int) -> Iterator[int]:
        with self._inside(), super().tunnel(port) as here:
            yield here

    def explain(self, done: Completed) -> HsopsError:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        return self._lost(words[-1] if words else f"srun ended with {done.exit}")

    @contextmanager
    def _inside(self) -> Iterator[None]:
        if self._job.suspended:  # a step would wait until it is resumed
            raise UnreachableError(f"{self._job}: its processes are stopped, by Slurm", host=self.host.name,
                                   why="nobody gets into it, and it answers nobody, until it is resumed",
                                   fix=self._job.fix)  # fmt: skip
        try:
            yield
        except AgentError:
            raise
        except NotBegunError as error:
            raise self._lost("srun began no step in time") from error
        except RemoteError as error:
            raise self._lost(error.message.rpartition("srun: error: ")[2]) from error

    def _lost(self, said: str) -> UnreachableError:
        if _SILENT(said):
            return UnreachableError(
                f"Slurm's controller does not answer: {said}",
                host=self.host.name,
                why=f"without it nobody gets into job {self._job.id}, which goes on",
                fix="scontrol ping on the login node; ask who runs the cluster",
            )
        return UnreachableError(
            f"job {self._job.id} on {self._job.node} cannot be entered: {said}",
            host=self.host.name,
            why="its compute node is reached by a step of the job, which ends with it",
            fix="hsops status says what became of the job",
        )


def step(job: Job) -> tuple[str, ...]:
    """The prefix that runs a command inside a job, beside what runs there."""
    srun = f"{job.bin}/srun" if job.bin else "srun"
    return (
        srun, f"--jobid={job.id}", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--mpi=none", "--quiet",
        "--chdir=/", "--unbuffered",
    )  # fmt: skip
