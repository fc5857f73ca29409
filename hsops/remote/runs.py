"""The runs on a host, through the agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hsops.core.command import Command
from hsops.core.deadline import QUICK, Deadline
from hsops.core.errors import UnhealthyError
from hsops.core.runs import Run, parse_run
from hsops.remote.agent import Agent
from hsops.remote.lock import Lock
from hsops.remote.log import Place

if TYPE_CHECKING:  # it brings the log's expressions, which only a launch needs
    from hsops.core.baseline import Baseline


@dataclass(frozen=True, slots=True)
class Stopped:
    """What ``stop_run`` did.

    Args:
        run: as it is now.
        ended: the processes that it ended: pid, command, and ``TERM`` or ``KILL``.
        left: processes that are still there, with their state; must be empty.
        seconds: how long it took.
        beside: who held the host's lock meanwhile, in words; empty: nobody else.
    """

    run: Run
    ended: tuple[dict[str, Any], ...]
    left: tuple[dict[str, Any], ...]
    seconds: float
    beside: str = ""


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


def need_capture(agent: Agent, server: str, run: Run | None) -> Run:
    """``run``, when it is one that writes dumps.

    Raises:
        UnhealthyError: there is none, or it was launched without hs-dump.
    """
    if run is None:
        raise UnhealthyError(f"no run of {server} is alive", host=agent.host.name, fix="hsops launch --wait-healthy")
    if not run.dump_dir:
        raise UnhealthyError(
            f"run {run.id} was launched without hs-dump: it would write no dumps",
            host=agent.host.name,
            fix="hsops deploy && hsops launch --replace --wait-healthy",
        )
    return run


def stop_run(
    agent: Agent, run: str, *, grace: float = 10.0, lock: Lock | None = None, keep: bool = False, force: bool = False
) -> Stopped:
    """End a run's whole process tree and nothing else.

    Args:
        grace: seconds between SIGTERM for the server and SIGKILL for everything that is left.
        lock: the command's own of the host; ``keep`` it for what the command does next.
        force: also while somebody else holds the lock.

    Raises:
        LockedError: somebody else holds it.
    """
    deadline = Deadline(idle=grace + 60.0, total=grace + 60.0)
    lock, what = lock or Lock(agent, "hsops stop"), f"run {run}"
    found = lock.call("run-stop", what=what, keep=keep, beside=force, deadline=deadline, run=run, grace=grace)
    beside = found["beside"]["words"] if found["beside"] else ""
    return Stopped(parse_run(found["run"]), tuple(found["ended"]), tuple(found["left"]), found["seconds"], beside)


def follow_run(
    agent: Agent, run: str, *, place: Place | None = None
) -> AbstractContextManager[Iterator[dict[str, Any]]]:
    """The agent's events of a run: ``run``, ``log``, ``log-cut``, ``vitals``, ``hello``, at the end ``result``.

    Args:
        place: how far its log is known; None: not at all.
    """
    return agent.stream("run-follow", run=run, place=place and place.param())


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
