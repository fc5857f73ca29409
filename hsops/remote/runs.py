"""The runs on a host, through the agent."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hsops.core.command import Command
from hsops.core.deadline import QUICK, Deadline
from hsops.core.errors import AgentError, UnhealthyError, UnreachableError
from hsops.core.proof import Proof, parse_proof
from hsops.core.runs import Run, parse_run
from hsops.remote.agent import Agent
from hsops.remote.lock import Lock
from hsops.remote.log import Place

if TYPE_CHECKING:  # it brings the log's expressions, which only a launch needs
    from hsops.core.baseline import Baseline


RANK_S = 3.0  # after a rank has ended, whose server lives: Slurm ends ranks one by one
ENDING_S = 90.0  # of a job: Slurm's KillWait is 30 s, and an epilog may follow
GPU_S = 20.0
"""For a driver to give memory back; tens of GiB take it a second or two."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """What ``stop_run`` did.

    Args:
        run: as it is now.
        ended: the processes that it ended: pid, command, and ``TERM`` or ``KILL``.
        left: processes that are still there, with their state; must be empty.
        seconds: how long it took.
        proof: that they are gone: port, shared memory, GPU memory; None when there was nothing to end.
        beside: who held the host's lock meanwhile, in words; empty: nobody else.
        unwritten: what a full disk did not take, in sentences.
    """

    run: Run
    ended: tuple[dict[str, Any], ...]
    left: tuple[dict[str, Any], ...]
    seconds: float
    proof: Proof | None = None
    beside: str = ""
    unwritten: tuple[str, ...] = ()


def new_id() -> str:
    """For a run over several hosts: as the agent makes them for one, by this machine's clock."""
    return f"{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def list_runs(agent: Agent, server: str | None = None, *, limit: int = 20, alive: bool = False) -> tuple[Run, ...]:
    """Runs on the host, newest first; only of ``server`` when named, only ``alive`` ones when wanted."""
    found = agent.call("run-list", deadline=QUICK, server=server, limit=limit, alive=alive)["runs"]
    return tuple(parse_run(raw) for raw in found)


def modules_of(agent: Agent, model: str) -> tuple[str, ...]:
    """The modules of the host's SGLang that define the class of ``model``; none for a hub id."""
    return tuple(agent.call("model-read", deadline=QUICK, path=model, modules=True)["modules"])


def alive_run(agent: Agent, server: str) -> Run | None:
    """The run of ``server`` that is alive, healthy or not."""
    return next((run for run in list_runs(agent, server) if run.alive), None)


def find_run(agent: Agent, run: Run) -> Run | None:
    """The same run as it is now."""
    return next((one for one in list_runs(agent, run.server) if one.id == run.id), None)


def settled(agent: Agent, run: Run) -> Run:
    """The run of a job that is ending, once Slurm has decided whether that was its end or it is started again."""
    began = time.monotonic()
    while True:
        run = find_run(agent, run) or run
        if run.job is None or run.job.over or run.pending:
            return run
        lives = run.phase == "running" and run.exit is None and run.job.state == "RUNNING"
        patience = 0.0 if lives and not run.dead else RANK_S if lives else ENDING_S
        if time.monotonic() - began >= patience:
            return run
        time.sleep(0.5)


def need_capture(agent: Agent, server: str, run: Run | None) -> Run:
    """``run``, when it is one that writes dumps.

    Raises:
        UnhealthyError: there is none, or it was launched without hs-dump.
    """
    if run is None:
        raise UnhealthyError(f"no run of {server} is alive", host=agent.host.name, fix="hsops launch --wait-healthy")
    if run.pending:
        fix = "hsops launch --wait-healthy waits for it"
        raise UnhealthyError(f"{server} waits for its place: {run.job}", host=agent.host.name, fix=fix)
    if not run.dump_dir:
        raise UnhealthyError(
            f"run {run.id} was launched without hs-dump: it would write no dumps",
            host=agent.host.name,
            fix="hsops deploy && hsops launch --replace --wait-healthy",
        )
    return run


def stop_run(
    agent: Agent,
    run: str,
    *,
    grace: float = 10.0,
    lock: Lock | None = None,
    keep: bool = False,
    force: bool = False,
    gpu_s: float = GPU_S,
) -> Stopped:
    """End a run's whole process tree and nothing else.

    Args:
        grace: seconds between SIGTERM for the server and SIGKILL for everything that is left.
        lock: the command's own of the host; ``keep`` it for what the command does next.
        force: also while somebody else holds the lock.
        gpu_s: seconds to wait for GPU memory to be given back.

    Raises:
        LockedError: somebody else holds it.
        UnreachableError: the connection broke; what was begun goes on there.
    """
    lock = lock or Lock(agent, "hsops stop")
    (stopped,) = _stop(lock, f"run {run}", grace, gpu_s, keep=keep, beside=force, run=run)
    return stopped


def stop_server(
    lock: Lock, server: str, *, grace: float = 10.0, force: bool = False, gpu_s: float = GPU_S
) -> tuple[Stopped, ...]:
    """End every run of ``server`` that has a process left, also one that another client is just starting.

    Arguments and errors as of ``stop_run``.
    """
    return _stop(lock, f"server {server}", grace, gpu_s, beside=force, server=server)


def _stop(
    lock: Lock, what: str, grace: float, gpu_s: float, *, keep: bool = False, beside: bool, **which: str
) -> tuple[Stopped, ...]:
    deadline = stop_deadline(grace, gpu_s)
    asked: dict[str, Any] = {"grace": grace, "gpu_s": gpu_s, **which}
    try:
        found = lock.call("run-stop", what=what, keep=keep, beside=beside, deadline=deadline, **asked)
    except UnreachableError as error:
        raise goes_on(error) from None
    except AgentError as error:
        raise _on_silent_slurm(on_full_disk(error)) from None
    words = found["beside"]["words"] if found["beside"] else ""
    return tuple(
        Stopped(
            parse_run(one["run"]),
            tuple(one["ended"]),
            tuple(one["left"]),
            one["seconds"],
            parse_proof(one["proof"]) if one["proof"] else None,
            words,
            tuple(found["unwritten"]),
        )
        for one in found["stopped"]
    )


def stop_deadline(grace: float, gpu_s: float) -> Deadline:
    """For ending processes: the grace, SIGKILL, and nvidia-smi asked until the memory is back."""
    seconds = grace + gpu_s + 90.0
    return Deadline(idle=seconds, total=seconds)


def on_full_disk(error: AgentError) -> AgentError:
    """What else a stop can do when the state folder takes nothing."""
    if error.code == "disk-full":
        error.why = "without the lock somebody may change the host meanwhile, and nothing would tell of the stop"
        error.fix = "make room on the host; or stop --force, which goes on without writing"
    return error


def _on_silent_slurm(error: AgentError) -> AgentError:
    if error.code == "slurm-silent":
        error.why = "the run is a job, and only Slurm can end that: nothing was cancelled, it goes on"
        error.fix = "scontrol ping on the login node; when the controller answers: hsops stop again"
    return error


def goes_on(error: UnreachableError) -> UnreachableError:
    """What a broken connection means for a stop: the agent on the host needs none."""
    more = "a stop that had begun goes on there without us: hsops status shows what became of it"
    error.fix = "; ".join(filter(None, (error.fix, more)))
    return error


def follow_run(
    agent: Agent, run: str, *, place: Place | None = None
) -> AbstractContextManager[Iterator[dict[str, Any]]]:
    """The agent's events of a run: ``run``, ``log``, ``log-cut``, ``vitals``, ``hello``, at the end ``result``.

    Args:
        place: how far its log is known; None: not at all.
    """
    return agent.stream("run-follow", run=run, place=place and place.param())


def log_end(agent: Agent, run: str, *, lines: int = 200) -> tuple[bytes, float]:
    """The last lines of a run's log, and what the time is now by the log's clock, which knows no zone."""
    from hsops.remote.log import read_log

    data = b"".join(read_log(agent, run, lines=lines))
    clock = agent.call("clock", deadline=QUICK)
    return data, float(clock["time"] + clock["utc_offset"])


def read_baseline(agent: Agent, server: str) -> Baseline:
    """What good runs of ``server`` looked like; empty when none is known or the file is unreadable."""
    from hsops.core.baseline import Baseline, parse_baseline

    done = agent.host.run(Command(("cat", _baseline_path(agent, server))), deadline=QUICK)
    try:
        return parse_baseline(json.loads(done.stdout)) if done.exit == 0 else Baseline(server)
    except (ValueError, KeyError, TypeError, IndexError):
        return Baseline(server)


def write_baseline(agent: Agent, baseline: Baseline) -> None:
    """Keep it on the host, where every client finds it."""
    from hsops.core.baseline import as_json

    agent.host.put(json.dumps(as_json(baseline)).encode(), _baseline_path(agent, baseline.server))


def _baseline_path(agent: Agent, server: str) -> str:
    return f"{agent.state_dir}/baselines/{server}.json"
