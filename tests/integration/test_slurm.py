"""Servers as jobs of a real Slurm, reached over a login node: a private cluster, a real sshd, real processes."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hsops.core.baseline import Baseline
from hsops.core.dumps import token_bytes
from hsops.core.errors import AgentError, HsopsError, UnhealthyError, UnreachableError
from hsops.core.events import Event, ignore
from hsops.core.inventory import ServerSpec
from hsops.core.prompts import Prompt
from hsops.core.runs import Run
from hsops.extract.extract import Job, extract
from hsops.extract.place import Finding, Place
from hsops.extract.plan import Capture
from hsops.launch import job, queue
from hsops.launch.queue import Queued
from hsops.launch.wait import Healthy, Patience, wait_healthy
from hsops.remote import runs
from hsops.remote.agent import Agent
from hsops.remote.connect import connect
from hsops.remote.dumps import list_samples
from hsops.remote.log import read_log
from hsops.remote.orphans import orphans
from tests.hosts import Server
from tests.practice_host import ENV, PracticeHost, practice_host
from tests.running import VICTIMS, start, wait_for
from tests.slurm_cluster import Cluster, cluster, login_node

pytestmark = pytest.mark.timeout(180)
SERVER = """\
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"{}")
    do_POST = do_GET
    def log_message(self, *_): pass
print("The server is fired up and ready to roll!", flush=True)
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """A controller and two nodes."""
    with tempfile.TemporaryDirectory(prefix="hsops-slurm-") as folder, cluster(Path(folder) / "s") as made:
        yield made


@pytest.fixture
def login(server: Server, tmp_path: Path, slurm: Cluster) -> Iterator[Agent]:
    """The agent on the login node."""
    with login_node(server, tmp_path / "state") as agent:
        yield agent


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


def healthy(agent: Agent, run: Run, emit: Any = ignore, seconds: float = 60.0) -> Run:
    """The run, once it answers."""
    found = wait_healthy([agent], run, baseline=Baseline("victim"), patience=Patience(seconds), emit=emit)
    assert isinstance(found, Healthy)
    return found.run


def found(agent: Agent, run: Run) -> Run:
    """The run as it is now."""
    seen = runs.find_run(agent, run)
    assert seen
    return seen


def test_a_job_waits_is_watched_and_stopped_like_any_run(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """Its place and the reason are told; then all goes through an agent in the job: its port and pids are elsewhere."""
    first = slurm.ask("sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 600")
    wait_for(lambda: slurm.ask("squeue", "-h", "-j", first, "-o", "%T") == "RUNNING", "the first job")
    submitted = serving(login, spec(slurm), tmp_path / "dumps")
    events: list[Event] = []
    with pytest.raises(UnhealthyError) as late:
        healthy(login, submitted, seconds=1.5)

    def emit(event: Event) -> None:
        events.append(event)
        if isinstance(event, Queued) and event.reason == "Resources":
            slurm.ask("scancel", first)

    run = healthy(login, submitted, emit)
    seen, inside = found(login, run), runs.list_runs(login.at(run))[0]
    done = runs.stop_run(login, run.id)
    after = found(login, run)

    assert late.value.message.startswith("victim has no place after 1.5 s: job ")
    assert submitted.pending and submitted.job and submitted.job.id
    waits = [event for event in events if isinstance(event, Queued) and event.reason == "Resources"]
    assert (waits[0].place, waits[0].of) == (1, 1) and "number 1 of 1 waiting in gpu" in waits[0].words
    assert seen.phase == inside.phase == "running" and seen.pid == inside.pid
    assert seen.job and seen.job.state == "RUNNING" and seen.job.node in slurm.nodes
    assert done.left == () and done.run.job and done.run.job.state == "CANCELLED" and done.run.job.over
    assert (after.phase, after.alive, after.exit and after.exit.signal) == ("stopped", False, "SIGTERM")
    assert slurm.ask("squeue", "-h") == ""


def test_a_requeued_job_goes_on_where_it_was(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """Slurm takes its node away in the middle of an extract and starts it again: another attempt, no prompt lost."""
    dumps = tmp_path / "dumps"
    go_on = tmp_path / "go-on"
    run = healthy(login, serving(login, spec(slurm), dumps, f"holds={go_on}", "free=8"))
    assert run.job
    number, told = run.job.id, list[str]()

    def emit(event: Event) -> None:
        told.append(str(getattr(event, "message", "")))
        if not any("requeue" in text for text in told) and len(list_samples(login, str(dumps)).samples) >= 5:
            told.append("requeue")
            slurm.ask("scontrol", "requeue", number)

    def launch(_: bool) -> None:
        go_on.touch()
        slurm.ask("scontrol", "update", f"job={number}", "StartTime=now")  # else it waits two minutes more
        healthy(login, found(login, run))

    done = extract(wanted(login, {"victim": dumps}, launch, count=60), emit)
    again = found(login, run)

    assert "requeue" in told and done.samples == 60 and done.failures == () and done.stopped is None
    assert (again.attempt, again.phase) == (2, "running") and again.job and again.job.restarts == 1
    assert done.servers[0].relaunched == 0 and any("comes back by itself" in text for text in told)
    assert (Path(again.directory) / "server.1.log").read_text() == "up\n"


def test_replicas_share_the_prompts_and_one_that_is_cancelled_loses_none(
    login: Agent, slurm: Cluster, tmp_path: Path
) -> None:
    """Two jobs on two nodes; somebody cancels one: the other does the rest, and the reason is Slurm's."""
    places = {name: tmp_path / name for name in ("a", "b")}
    words = {"a": (f"holds={tmp_path / 'never'}", "free=8"), "b": ()}
    started = {name: serving(login, spec(slurm, cpus=2), places[name], *words[name], name=name) for name in places}
    both = {name: healthy(login, run) for name, run in started.items()}
    cancelled = list[str]()

    def emit(_: Event) -> None:
        if not cancelled and len(list_samples(login, str(places["a"])).samples) >= 5:
            assert both["a"].job
            cancelled.append(slurm.ask("scancel", both["a"].job.id))

    done = extract(wanted(login, places, count=120), emit)
    rows = {row.server: row for row in done.servers}

    assert cancelled and done.samples == 120 and done.failures == () and done.stopped is None
    assert {both[name].job.node for name in places} == set(slurm.nodes)  # type: ignore[union-attr]
    assert 5 <= rows["a"].samples <= 8 and rows["a"].samples + rows["b"].samples == 120
    assert "was cancelled (CANCELLED)" in rows["a"].error


def wanted(agent: Agent, places: dict[str, Path], launch: Any = None, *, count: int) -> Job:
    """An extract."""

    def no(_: bool) -> None:
        raise UnhealthyError("nobody starts it again")

    def diagnose(_: str) -> Finding:
        return Finding(True, "not looked into")

    found = tuple(
        Place(name, str(path), agent, Capture((1, 3), "pre-norm"), diagnose, launch or no)
        for name, path in places.items()
    )
    prompts = tuple(Prompt(f"p{i}", i + 1, token_bytes([1, 2, 3])) for i in range(count))
    return Job(found, Path("p.jsonl"), prompts, 4)


@pytest.mark.parametrize(
    "more,usual,message,fix",
    [
        ({"bin": "/nowhere"}, None, "there is no Slurm on practice: /nowhere/sinfo is not found", "slurm.bin"),
        ({"partition": "gqu"}, None, "Slurm has no partition 'gqu'; did you mean 'gpu'?", "slurm.partition"),
        (
            {"time": "2:00"},
            300.0,
            "slurm.time is 120 s, and good runs of victim took 300 s to be healthy",
            "slurm.time",
        ),
        ({"partition": "short"}, 400.0, "the limit of partition short is 300 s, and good runs", "slurm.time"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_it_is_submitted(
    login: Agent, slurm: Cluster, more: dict[str, Any], usual: float | None, message: str, fix: str
) -> None:
    """No Slurm, no such queue, no time to start in."""
    with pytest.raises(HsopsError) as refused:
        queue.check(login, spec(slurm, **more), usual)

    assert refused.value.message.startswith(message) and fix in refused.value.fix
    assert refused.value.host == "practice"


def test_what_sbatch_refuses_leaves_nothing(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """Its own words are told, and there is no run that would never start."""
    with pytest.raises(AgentError) as refused:
        serving(login, spec(slurm, mem="900G"), tmp_path / "dumps")

    assert refused.value.code == "slurm-refused"
    assert "Requested node configuration is not available" in refused.value.message
    assert runs.list_runs(login) == ()


def test_a_held_job_is_not_waited_for(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """Nobody but a person starts it: the wait ends, and says who may. It can be stopped, and was never anywhere."""
    run = serving(login, spec(slurm, options=["--hold"]), tmp_path / "dumps")

    with pytest.raises(UnhealthyError) as held:
        healthy(login, run)
    before = list(read_log(login, run.id))
    stopped = runs.stop_run(login, run.id)

    assert run.job and held.value.message == f"victim is not started: job {run.job.id} PENDING (JobHeldUser)"
    assert held.value.why == "somebody holds it" and f"scontrol release {run.job.id}" in held.value.fix
    assert (stopped.run.phase, stopped.ended, stopped.left, before) == ("stopped", (), (), [])
    assert stopped.run.job and (stopped.run.job.state, stopped.run.job.node) == ("CANCELLED", "")


def test_a_job_that_is_requeued_and_held_is_not_waited_for(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """``scontrol requeuehold``, and what a site's prolog does to a job: it starts when somebody releases it."""
    run = healthy(login, serving(login, spec(slurm), tmp_path / "dumps"))
    assert run.job
    slurm.ask("scontrol", "requeuehold", run.job.id)
    wait_for(lambda: found(login, run).pending, "the requeue")

    with pytest.raises(UnhealthyError) as held:
        healthy(login, found(login, run))

    assert held.value.why == "somebody holds it" and f"scontrol release {run.job.id}" in held.value.fix


def test_a_suspended_job_is_told_as_that(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """Its processes are stopped, by Slurm: neither a hang nor somebody's SIGSTOP."""
    run = healthy(login, serving(login, spec(slurm), tmp_path / "dumps"))
    assert run.job
    slurm.ask("scontrol", "suspend", run.job.id)
    wait_for(lambda: (seen := found(login, run).job) and seen.state == "SUSPENDED", "Slurm's word")
    seen = found(login, run)
    slurm.ask("scontrol", "resume", run.job.id)

    assert seen.alive and str(seen.job) == f"job {run.job.id} SUSPENDED on {run.job.node}"


def test_devices_are_dealt_out_and_the_step_that_looks_gets_in(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """A node has two, a job takes both: a third waits. A step beside the server's is not kept out for want of one."""
    held = [serving(login, spec(slurm, gres="gpu:2"), tmp_path / name, name=name) for name in ("a", "b")]
    both = [healthy(login, run) for run in held]
    third = serving(login, spec(slurm, gres="gpu:2"), tmp_path / "c", name="c")
    told = slurm.ask("scontrol", "-o", "show", "job", str(both[0].job and both[0].job.id))
    step = slurm.ask("scontrol", "-o", "show", "step", f"{both[0].job and both[0].job.id}.0")

    def waits() -> Any:
        job = found(login, third).job
        return job and job.reason in ("Resources", "Priority")

    wait_for(waits, "the third to wait for a device")
    inside = [login.at(run).call("clock") for run in both]

    assert {run.job.node for run in both if run.job} == set(slurm.nodes)
    assert "gpu:2" in told and "gpu" in step, (told, step)
    assert all(clock["time"] for clock in inside)


def test_a_controller_that_is_silent_kills_nothing(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """Its commands wait for minutes: a deadline ends them, and what runs is shown as it was last."""
    run = healthy(login, serving(login, spec(slurm), tmp_path / "dumps"))
    slurm.freeze()
    try:
        with pytest.raises(HsopsError) as silent:
            queue.check(login, spec(slurm), None)
        seen = found(login, run)
        with pytest.raises(AgentError) as not_stopped:
            runs.stop_run(login, run.id)
    finally:
        slurm.thaw()
    wait_for(lambda: not getattr(found(login, run).job, "trouble", ""), "the controller")

    assert silent.value.message.startswith("Slurm's controller does not answer: s")
    assert seen.alive and seen.job and seen.job.state == "RUNNING"
    assert seen.job.trouble == "scontrol gave no answer in 8 s"
    assert seen.pid == run.pid
    assert not_stopped.value.code == "slurm-silent" and "scontrol ping" in not_stopped.value.fix
    assert not (Path(run.directory) / "stop.json").exists()  # nobody has ended it: it is no stopped run in the end


def test_nobody_gets_in_without_the_controller(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """The job is there and well, so its end is not what is told."""
    run = healthy(login, serving(login, spec(slurm), tmp_path / "dumps"))
    slurm.kill_controller()
    try:
        with pytest.raises(UnreachableError) as lost:
            login.at(run).call("clock")
    finally:
        slurm.start_controller()
    wait_for(lambda: not getattr(found(login, run).job, "trouble", ""), "the controller")
    assert run.job

    assert lost.value.message.startswith("Slurm's controller does not answer: ")
    assert lost.value.why == f"without it nobody gets into job {run.job.id}, which goes on"
    assert found(login, run).phase == "running"


LEAVES = "import subprocess, sys\nsubprocess.Popen(['sleep', '900'], start_new_session=True)\nsys.exit(3)\n"


def test_a_job_that_outlives_its_server_is_ended_before_another_is_submitted(slurm: Cluster, tmp_path: Path) -> None:
    """A process that the server left holds the job, and the job its node."""
    site = practice_site(tmp_path / "site", slurm, LEAVES)

    def known() -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = json.loads(site.hsops("--json", "status", "--all").stdout)["data"]["runs"]
        return told

    site.hsops("launch", check=True)
    wait_for(lambda: known()[0]["phase"] == "exited", "the end of the server")
    (first,) = known()
    again = site.hsops("launch")
    after = {run["id"]: run for run in known()}
    jobs = slurm.ask("squeue", "-h", "-o", "%A").split()
    stopped = site.hsops("stop")

    assert first["job"]["state"] == "RUNNING" and again.returncode == 0
    assert f"cancelling job {first['job']['id']}, which run {first['id']} has left behind first" in again.stderr
    assert after[first["id"]]["job"]["state"] == "CANCELLED" and len(after) == 2
    assert jobs == [run["job"]["id"] for run in after.values() if run["id"] != first["id"]]
    assert stopped.returncode == 0 and slurm.ask("squeue", "-h") == ""


def test_a_login_node_that_is_the_compute_node_has_no_orphans(server: Server, tmp_path: Path) -> None:
    """There a job's processes can be seen: they are looked after, whoever's state folder they are of."""
    host = connect(server.spec)
    mine, others = (Agent(host, python=server.spec.python, state_dir=str(tmp_path / name)) for name in "ab")
    with (
        tempfile.TemporaryDirectory(prefix="hsops-slurm-") as folder,
        cluster(Path(folder) / "s", ("node1",), apart=False) as small,
    ):
        run = healthy(mine, serving(mine, spec(small), tmp_path / "dumps"))
        seen = [one.command for agent in (mine, others) for one in orphans(agent).found if one.run == run.id]
        stopped = runs.stop_run(mine, run.id)
    host.close()

    assert seen == [] and stopped.run.job and stopped.run.job.over


def practice_site(folder: Path, slurm: Cluster, program: str) -> PracticeHost:
    """A host whose inventory has a server that is a job, with ``program`` for SGLang."""
    site = practice_host(folder)
    (site.site / "sglang/launch_server.py").write_text(program)
    site.inventory.write_text(
        f"hosts:\n  here: {{ ssh: local, python: {site.python}, state_dir: {site.state} }}\n"
        "servers:\n  tiny:\n    host: here\n    model: hub/none\n    port: auto\n    executor: slurm\n"
        f"    slurm: {{ partition: gpu, mem: '1000', bin: {slurm.bin} }}\n"
    )
    return site


def test_the_commands_work_on_a_job(slurm: Cluster, tmp_path: Path) -> None:
    """launch, status, logs, diagnose and stop, as a person types them; a wrong queue is refused with its place."""
    site = practice_site(tmp_path / "site", slurm, SERVER)
    text = site.inventory.read_text()
    site.inventory.write_text(text.replace("gpu", "gqu"))
    wrong = site.hsops("launch")
    site.inventory.write_text(text)

    healthy = site.hsops("launch", "--wait-healthy")
    again = site.hsops("launch", "--wait-healthy")
    status, told = site.hsops("status"), json.loads(site.hsops("--json", "status").stdout)["data"]["runs"][0]
    log, verdict = site.hsops("logs"), site.hsops("--json", "diagnose").stdout.splitlines()[-1]
    stopped, after = site.hsops("stop"), site.hsops("status")
    left = json.loads(site.hsops("--json", "status").stdout)["data"]["orphans"]  # others' on this machine too

    assert wrong.returncode == 1 and "Slurm has no partition 'gqu'; did you mean 'gpu'?" in wrong.stderr
    assert healthy.returncode == 0 and "healthy after" in healthy.stdout, healthy.stdout + healthy.stderr
    assert "already healthy, nothing to do" in again.stdout
    assert told["job"]["state"] == "RUNNING" and told["health"] == "healthy"
    assert f"(job {told['job']['id']} RUNNING on {told['job']['node']})" in status.stdout
    assert log.stdout == "The server is fired up and ready to roll!\n"
    assert json.loads(verdict)["data"]["verdict"]["class"] == "healthy"
    assert stopped.returncode == 0 and "Slurm ended all that it had started there" in stopped.stdout
    assert "stopped" in after.stdout
    assert [one for one in left if one["run"] == told["id"]] == []
    assert subprocess.run([slurm.bin / "squeue", "-h"], env=ENV, capture_output=True, check=True).stdout == b""


def test_the_doctor_looks_at_a_login_node(slurm: Cluster, tmp_path: Path) -> None:
    """Commands, controller, partition and accounting, before anything is submitted; a silent controller in time."""
    site = practice_site(tmp_path / "site", slurm, SERVER)
    (site.site / "torch").mkdir()
    (site.site / "torch/__init__.py").touch()
    (site.site / "torch/version.py").write_text("__version__ = '2.9.1'\ncuda = '13.0'\n")

    def doctor() -> tuple[int, dict[str, str]]:
        done = site.hsops("--json", "doctor")
        findings = json.loads(done.stdout)["data"]["hosts"]["here"]["findings"]
        return done.returncode, {one["what"]: one["level"] for one in findings if one["area"] == "slurm"}

    well = doctor()
    slurm.ask("scontrol", "update", "PartitionName=gpu", "State=DOWN")
    down = doctor()
    slurm.ask("scontrol", "update", "PartitionName=gpu", "State=UP")
    slurm.freeze()
    try:
        silent = doctor()
    finally:
        slurm.thaw()

    assert well == (0, {"no accounting (sacct)": "note"})
    assert down == (1, {"tiny: partition gpu is down": "blocker", "no accounting (sacct)": "note"})
    assert silent[0] == 1 and list(silent[1].values()) == ["blocker"]
    assert next(iter(silent[1])).startswith("Slurm's controller does not answer: sinfo ")


def test_what_a_node_lacks_is_told(login: Agent, slurm: Cluster, tmp_path: Path) -> None:
    """A dump folder that is another one there, as /dev/shm is: refused where it shows, with the reason in the log."""
    if not slurm.apart:
        pytest.skip("only root can have nodes with a /dev/shm of their own")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as dumps:
        run = serving(login, spec(slurm), Path(dumps) / "d")
        with pytest.raises(UnhealthyError) as ended:
            healthy(login, run)

    assert f"the login node sees another {dumps}/d" in ended.value.why


def test_a_job_that_fails_before_its_server_is_told_by_its_own_output(
    login: Agent, slurm: Cluster, tmp_path: Path
) -> None:
    """Python is not there on the compute node, for one: no supervisor has written anything."""
    server = spec(slurm)
    asked = job.request(server)
    assert asked
    asked["script"] = "#!/bin/sh\nexec srun --mpi=none /nowhere/python\n"
    run = start(login, "{port}", victim="serving.py", tp=1, slurm=asked)

    with pytest.raises(UnhealthyError) as ended:
        healthy(login, run)

    assert "the job's own output ends with: " in ended.value.why and "/nowhere/python" in found(login, run).job.said  # type: ignore[union-attr]
