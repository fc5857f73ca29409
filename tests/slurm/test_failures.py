"""What Slurm does to jobs: another takes the place, a node fails, the controller is away. ``make slurm``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hsops.core.errors import AgentError
from hsops.core.runs import Run
from hsops.extract.extract import extract
from hsops.remote import runs
from hsops.remote.agent import Agent
from hsops.remote.dumps import list_samples
from tests.hosts import Server
from tests.integration.test_slurm import found, healthy, serving, spec, wanted
from tests.running import wait_for
from tests.slurm.results import record
from tests.slurm_cluster import Cluster, login_node

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture
def login(server: Server, tmp_path: Path, slurm: Cluster) -> Iterator[Agent]:
    """The agent on the login node."""
    with login_node(server, tmp_path / "state") as agent:
        yield agent


def extracted(login: Agent, run: Run, dumps: Path, go_on: Path, harm: Any, back: Any = lambda: None) -> Any:
    """An extract in whose middle ``harm`` is done; ``back``: before its server is waited for."""
    done = list[str]()

    def emit(_: object) -> None:
        if not done and len(list_samples(login, str(dumps)).samples) >= 5:
            done.append("harmed")
            harm()

    def launch(_: bool) -> None:
        go_on.touch()
        back()
        healthy(login, found(login, run), seconds=240)

    return extract(wanted(login, {"victim": dumps}, launch, count=60), emit)


def test_a_preempted_job_continues_the_extract(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """A job of a higher tier takes both nodes; when it is over Slurm starts ours again, and the rest is sent."""
    dumps, go_on, began = tmp_path / "dumps", tmp_path / "go-on", time.monotonic()
    run = healthy(login, serving(login, spec(slurm, cpus=2), dumps, f"holds={go_on}", "free=8"))
    assert run.job
    words = ("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 5")

    def urgent() -> None:
        number = slurm.ask("sbatch", "--parsable", *words)
        wait_for(lambda: slurm.ask("squeue", "-h", "-t", "all", "-j", number, "-o", "%T") == "RUNNING", "it", 120)

    def back() -> None:
        slurm.ask("scontrol", "update", f"job={found(login, run).job.id}", "StartTime=now")  # type: ignore[union-attr]

    done = extracted(login, run, dumps, go_on, urgent, back)
    again = found(login, run)

    assert done.samples == 60 and done.failures == () and done.stopped is None, done
    assert again.attempt == 2 and again.job and again.job.restarts == 1
    said = f"60 of 60 samples; {again.job}, attempt {again.attempt}"
    record("a job of a higher tier preempts the server's (stand-in server)", said, time.monotonic() - began)


def test_a_node_that_fails_is_replaced_by_another(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """Its processes are gone at once and Slurm finds out later; then the job goes to the other node, and so do we."""
    assert slurm.apart, "only root can have a node whose processes all end"
    dumps, go_on, began = tmp_path / "dumps", tmp_path / "go-on", time.monotonic()
    run = healthy(login, serving(login, spec(slurm, cpus=2), dumps, f"holds={go_on}", "free=8"))
    assert run.job
    node = run.job.node

    def kill() -> None:
        slurm.kill_node(node)

    def back() -> None:
        wait_for(lambda: found(login, run).pending, "Slurm's word that the node is gone", 180)
        slurm.ask("scontrol", "update", f"job={run.job.id}", "StartTime=now")  # type: ignore[union-attr]

    done = extracted(login, run, dumps, go_on, kill, back)
    again = found(login, run)
    slurm.start_node(node)

    assert done.samples == 60 and done.failures == () and done.stopped is None, done
    assert again.attempt == 2 and again.job and again.job.node not in ("", node)
    said = f"60 of 60 samples; {again.job}, attempt {again.attempt}, before that on {node}"
    record("the server's node fails (stand-in server)", said, time.monotonic() - began)


def test_a_node_that_fails_is_named(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """Without requeueing that is the end, and no signal was seen by anybody."""
    assert slurm.apart, "only root can have a node whose processes all end"
    began = time.monotonic()
    run = healthy(login, serving(login, spec(slurm, requeue=False), tmp_path / "dumps"))
    assert run.job

    slurm.kill_node(run.job.node)
    wait_for(lambda: getattr(found(login, run).job, "over", False), "Slurm's word", 180)
    after = found(login, run)
    slurm.start_node(run.job.node)

    assert after.phase == "exited" and after.job
    assert after.job.cause == f"job {run.job.id} lost its node {run.job.node} (NODE_FAIL)"
    record("the same, `requeue: false`", after.job.cause, time.monotonic() - began)


def test_a_submission_that_is_cut_off_is_found_again(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """sbatch's deadline passes and the controller takes the job all the same: it is ours, and there is one."""
    began = time.monotonic()
    slurm.freeze()
    try:
        with pytest.raises(AgentError) as silent:
            serving(login, spec(slurm), tmp_path / "dumps")
    finally:
        slurm.thaw()
    slurm.ask("sinfo", seconds=60)
    (known,) = runs.list_runs(login)
    if known.alive:
        healthy(login, known)
    (after,) = runs.list_runs(login)
    count = len(slurm.ask("squeue", "-h").splitlines())

    assert silent.value.code == "slurm-silent"
    assert after.job and (after.phase, count) in (("running", 1), ("exited", 0))
    record("sbatch is cut off, the controller answers later", f"{after.job}; {count} job", time.monotonic() - began)


def test_nothing_is_stopped_without_a_controller(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """Only Slurm can end a job: the run goes on, as stop says, and is ended when there is a controller again."""
    began = time.monotonic()
    run = healthy(login, serving(login, spec(slurm), tmp_path / "dumps"))
    slurm.kill_controller()
    with pytest.raises(AgentError) as gone:
        runs.stop_run(login, run.id)
    seen = found(login, run)
    slurm.start_controller()
    wait_for(lambda: not getattr(found(login, run).job, "trouble", ""), "the controller")

    stopped = runs.stop_run(login, run.id)

    assert gone.value.code == "slurm-silent" and "only Slurm can end that" in gone.value.why
    assert seen.alive and seen.pid == run.pid
    assert stopped.run.phase == "stopped" and stopped.run.job and stopped.run.job.over
    record("`stop` while slurmctld is down, and again", f"refused; then {stopped.run.job}", time.monotonic() - began)
