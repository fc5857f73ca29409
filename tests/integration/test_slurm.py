"""Servers as jobs of a real Slurm, reached over a login node: a private cluster, a real sshd, real processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hsops.core.baseline import Baseline
from hsops.core.events import Event, ignore
from hsops.core.inventory import ServerSpec
from hsops.core.runs import Run
from hsops.launch import job
from hsops.launch.wait import Healthy, Patience, wait_healthy
from hsops.remote import runs
from hsops.remote.agent import Agent
from hsops.remote.connect import connect
from tests.hosts import Server
from tests.running import VICTIMS, start
from tests.slurm_cluster import Cluster, cluster

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """A controller and two nodes."""
    with tempfile.TemporaryDirectory(prefix="hsops-slurm-") as folder, cluster(Path(folder) / "s") as made:
        yield made


@pytest.fixture
def login(server: Server, tmp_path: Path, slurm: Cluster) -> Iterator[Agent]:
    """The agent on the login node, over SSH; whatever it has started is over."""
    host = connect(server.spec)
    agent = Agent(host, python=server.spec.python, state_dir=str(tmp_path / "state"))
    yield agent
    for run in runs.list_runs(agent):
        if run.alive or (run.job and not run.job.over):
            runs.stop_run(agent, run.id, grace=0.0)
    host.close()


def spec(slurm: Cluster, **more: Any) -> ServerSpec:
    """A server that is a job."""
    wanted = {"cpus": 1, "mem": "1000", "bin": str(slurm.bin), **more}
    given = {"name": "victim", "host": "login", "model": "none", "executor": "slurm", "slurm": wanted}
    return ServerSpec.model_validate(given)


def serving(agent: Agent, server: ServerSpec, dumps: Path, *words: str, name: str = "victim") -> Run:
    """Submit a server that captures."""
    env = {"PYTHONPATH": str(VICTIMS.parents[1]), "SGLANG_HS_DUMP_DIR": "{dump_dir}", "SGLANG_HS_RUN": "{run}"}
    more = {"tp": 1, "dump_dir": str(dumps), "slurm": job.request(server), "server": name}
    return start(agent, "{port}", *words, victim="serving.py", env=env, **more)


def healthy(agent: Agent, run: Run, events: list[Event] | None = None, seconds: float = 60.0) -> Run:
    """The run, once it answers."""
    emit = events.append if events is not None else ignore
    found = wait_healthy(agent, run, baseline=Baseline("victim"), patience=Patience(seconds), emit=emit)
    assert isinstance(found, Healthy)
    return found.run


def test_a_job_is_launched_watched_and_stopped_like_any_run(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """Through its own agent on the compute node: neither its port nor its processes are on the login node."""
    submitted = serving(login, spec(slurm), tmp_path / "dumps")
    events: list[Event] = []
    run = healthy(login, submitted, events)
    (seen,) = runs.list_runs(login)
    done = runs.stop_run(login, run.id)
    (after,) = runs.list_runs(login)

    assert submitted.pending and submitted.job and submitted.job.id
    assert seen.phase == "running" and seen.job and seen.job.state == "RUNNING" and seen.job.node in slurm.nodes
    assert done.left == () and done.run.job and done.run.job.state == "CANCELLED"
    assert (after.phase, after.alive) == ("stopped", False)
    assert slurm.ask("squeue", "-h") == ""
