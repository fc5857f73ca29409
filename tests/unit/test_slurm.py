"""A job as Slurm tells it, what it is asked for, and what may be written about it in an inventory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hsops.agent import job as agent_job
from hsops.agent import procs, stop
from hsops.agent import slurm as agent_slurm
from hsops.agent.ending import until
from hsops.agent.full_disk import Unwritten
from hsops.agent.orphans import _Seen
from hsops.agent.protocol import Refusal
from hsops.agent.rundir import RunDir
from hsops.agent.runs import list_runs
from hsops.core.errors import ConfigError, HsopsError, UnhealthyError
from hsops.core.events import ignore
from hsops.core.inventory import ServerSpec, SlurmSpec
from hsops.core.inventory_file import load
from hsops.core.slurm import Job, parse_job, seconds_of
from hsops.diagnose import judge
from hsops.launch import job, queue
from hsops.launch.paste import submitted
from hsops.launch.start import _clear
from hsops.remote.agent import Agent
from hsops.remote.job import step
from hsops.remote.local import LocalHost
from hsops.remote.runs import stop_server
from hsops.render.stop import faults, host_lines
from tests import diagnose_cases

INVENTORY = """\
hosts:
  login: {{ ssh: local, python: /p/python, dumps: {dumps} }}
servers:
  tiny:
    host: login
    model: hub/none
    {server}
    patches: [hs-dump]
patches:
  hs-dump: {{ boundaries: [1] }}
"""


@pytest.mark.parametrize(
    "text,seconds",
    [("90", 5400), ("1:30", 90), ("4:00:00", 14400), ("2-0", 172800), ("1-12:30", 131400), ("0-0:0:5", 5)],
)
def test_time_limits_are_read_as_slurm_reads_them(text: str, seconds: float) -> None:
    """A number alone is minutes, two are minutes and seconds; behind a day come hours."""
    assert seconds_of(text) == seconds


def test_a_limit_without_an_end_and_none_at_all() -> None:
    """UNLIMITED is no number; anything else is a mistake."""
    assert seconds_of("UNLIMITED") is seconds_of("infinite") is None
    with pytest.raises(ValueError, match="'2h' is no time of Slurm's"):
        seconds_of("2h")


@pytest.mark.parametrize(
    "told,words,cause",
    [
        ({"state": "PENDING", "reason": "Resources", "place": 2, "of": 5, "partition": "gpu"},
         "job 7 PENDING (Resources), number 2 of 5 waiting in gpu", ""),
        ({"state": "RUNNING", "node": "n3"}, "job 7 RUNNING on n3", ""),
        ({"state": "TIMEOUT", "over": True, "node": "n3", "limit": "00:01:00", "exit": "0:0"},
         "job 7 TIMEOUT on n3, exit 0:0", "job 7 reached its time limit of 00:01:00 (TIMEOUT)"),
        ({"state": "FAILED", "over": True, "exit": "0:9", "said": "slurmstepd: error: Exceeded job memory limit"},
         "job 7 FAILED, exit 0:9", "job 7 took more memory than it may (FAILED, exit 0:9)"),
        ({"state": "OUT_OF_MEMORY", "over": True, "exit": "0:125"},
         "job 7 OUT_OF_MEMORY, exit 0:125", "job 7 took more memory than it may (OUT_OF_MEMORY, exit 0:125)"),
        ({"state": "NODE_FAIL", "over": True, "node": "n3"}, "job 7 NODE_FAIL on n3",
         "job 7 lost its node n3 (NODE_FAIL)"),
        ({"state": "PREEMPTED", "over": True}, "job 7 PREEMPTED",
         "job 7 gave way to a job of higher priority (PREEMPTED)"),
        ({"state": "FAILED", "over": True, "exit": "1:0"}, "job 7 FAILED, exit 1:0", ""),
        ({"state": "RUNNING", "trouble": "scontrol gave no answer in 8 s"},
         "job 7 RUNNING when it was last known: scontrol gave no answer in 8 s", ""),
    ],
)  # fmt: skip
def test_a_job_is_told_in_words(told: dict[str, Any], words: str, cause: str) -> None:
    """What it waits for, where it runs, and whose doing its end was; a server that failed by itself is not Slurm's."""
    found = parse_job({"id": "7", **told})

    assert found and str(found) == words and found.cause == cause


def test_what_waits_for_ever_is_known() -> None:
    """A held job wants to be released; a limit that no partition has wants another inventory; resources come."""
    held, never, waits = (Job("7", "PENDING", reason) for reason in ("JobHeldAdmin", "PartitionTimeLimit", "Priority"))

    assert (held.hopeless, never.hopeless, waits.hopeless) == (True, True, False)
    assert held.fix.startswith("scontrol release 7") and "servers.<name>.slurm" in never.fix


def test_sbatch_is_asked_for_what_the_inventory_says() -> None:
    """Its own options come last: they win over what hsops says."""
    spec = SlurmSpec.model_validate(
        {"partition": "gpu", "gres": "gpu:8", "time": "2-0", "cpus": 64, "options": ["--nodes=2"], "requeue": False}
    )

    assert job.options(spec) == [
        "--nodes=1", "--ntasks=1", "--chdir={run_dir}", "--output={run_dir}/job.log", "--open-mode=append",
        "--no-requeue", "--partition=gpu", "--gres=gpu:8", "--time=2-0", "--cpus-per-task=64", "--nodes=2",
    ]  # fmt: skip


def test_what_is_submitted_can_be_read_before() -> None:
    """``launch --check`` shows it, with the folder of a run that is not there yet."""
    spec = SlurmSpec.model_validate({"gres": "gpu:8", "options": ["--constraint=a&b"]})
    told = submitted({"bin": "/opt/my slurm", "script": "", "options": job.options(spec)})

    assert told == (
        "'/opt/my slurm/sbatch' --nodes=1 --ntasks=1 --chdir=$run_dir --output=$run_dir/job.log --open-mode=append "
        "--requeue --gres=gpu:8 '--constraint=a&b'"
    )


def test_a_server_on_a_host_asks_slurm_for_nothing() -> None:
    """And one that is a job has its commands where the inventory says, on the compute node too."""
    given: dict[str, Any] = {"name": "s", "host": "h", "model": "m"}
    there = {"executor": "slurm", "slurm": {"bin": "/opt/my slurm/bin"}}

    assert job.request(ServerSpec.model_validate(given)) is None
    asked = job.request(ServerSpec.model_validate({**given, **there}))
    assert asked and asked["bin"] == "/opt/my slurm/bin" and "\nPATH='/opt/my slurm/bin':$PATH\n" in asked["script"]
    assert step(Job("7", "RUNNING", bin="/opt/s"))[:3] == ("/opt/s/srun", "--jobid=7", "--overlap")


@pytest.mark.parametrize(
    "server,dumps,place,message",
    [
        ("executor: slurm", "/dev/shm/hs", "7:5", "name a folder that the login node sees too"),
        ("slurm: { partition: gpu }", "/shared", "7:5", "it has no effect without executor: slurm"),
        ("executor: slurm\n    slurm: { time: 12:00:00 }", "/shared", "8:20", "expected text, got 43200"),
        ("executor: slurm\n    slurm: { time: '2h' }", "/shared", "8:20", "'2h' is no time of Slurm's"),
        ("executor: slurm\n    slurm: { partition: a b }", "/shared", "8:25", "'a b' is not one word"),
        ("executor: slrum", "/shared", "7:15", ""),
        ("executor: slurm\n    slurm: { options: [--array=0-1] }", "/shared", "8:24", "'--array' is not for options"),
        ("executor: slurm\n    slurm: { options: [--hold, --out=x] }", "/shared", "8:32", "'--out' is not for options"),
        ("executor: slurm\n    slurm: { options: [-Jmine] }", "/shared", "8:24", "'-Jmine' is not for options"),
    ],
)
def test_faults_of_the_inventory(tmp_path: Path, server: str, dumps: str, place: str, message: str) -> None:
    """Each with its place, and before anything is asked of anybody."""
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY.format(server=server, dumps=dumps))

    with pytest.raises(ConfigError) as wrong:
        load(path)

    (fault,) = wrong.value.faults
    assert (f"{fault.line}:{fault.column}", message in fault.message) == (place, True), str(fault)


@pytest.mark.parametrize(
    "option", ["--wait-all-nodes=1", "--constraint=a&b", "-C", "h200", "--open-mode=append", "--hold"]
)
def test_options_of_sbatch_that_leave_it_one_job(option: str) -> None:
    """They are handed on as they are."""
    assert SlurmSpec.model_validate({"options": [option]}).options == (option,)


def test_a_job_has_one_node(tmp_path: Path) -> None:
    """Slurm finds its host: nodes beside executor: slurm are refused, with their place."""
    path = tmp_path / "inventory.yaml"
    hosts = "a: { ssh: a, python: /p, dumps: /shared }, b: { ssh: b, python: /p, dumps: /shared }"
    server = "tiny: { nodes: [a, b], executor: slurm, model: /m, tp: 2 }"
    path.write_text(f"hosts: {{ {hosts} }}\nservers:\n  {server}\n")

    with pytest.raises(ConfigError) as wrong:
        load(path)

    (fault,) = wrong.value.faults
    assert (fault.line, fault.column) == (3, 18) and "nodes: not together with executor: slurm" in str(fault)


def test_the_state_of_a_job_is_not_looked_up_in_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pids are another host's: here they may be anybody's, or nobody's."""
    monkeypatch.setenv("PATH", "/nowhere")
    run = RunDir(str(tmp_path))
    running = {"phase": "running", "pid": 1, "start": 0, "boot": "b", "supervisor": [1, 0], "job_restarts": 1}
    known = {"id": "7", "bin": "/nowhere", "name": "x", "state": "RUNNING", "restarts": 1}
    run.write("state.json", running)

    def phase(**job: Any) -> tuple[str, str]:
        run.write("job.json", {**known, **job})
        agent_slurm._looked.clear()
        found = run.state()
        return found["phase"], found["job"].get("trouble", "")

    assert phase() == ("running", "there is no scontrol on this host")  # as it was last
    assert phase(restarts=2)[0] == "pending"  # what was written is of the start before
    assert phase(state="PENDING", restarts=2)[0] == "pending"
    assert phase(state="TIMEOUT", over=True) == ("exited", "")
    run.write("stop.json", {})
    assert phase(state="CANCELLED", over=True) == ("stopped", "")
    assert run.processes(running) == []


SCONTROL = """\
#!/bin/sh
echo "slurm_load_jobs error: $(cat "$0.says")" >&2
exit 1
"""


@pytest.mark.parametrize(
    "says,phase,state,trouble",
    [
        ("Invalid job id specified", "exited", "FORGOTTEN", ""),
        ("Unable to contact slurm controller (connect failure)", "running", "RUNNING", "Unable to contact"),
        ("Could not establish a configuration source", "running", "RUNNING", "configuration source"),
    ],
)
def test_only_a_job_that_slurm_does_not_know_is_over(
    tmp_path: Path, says: str, phase: str, state: str, trouble: str
) -> None:
    """Whatever else scontrol complains of says nothing of the job: the run is as it was last."""
    program = tmp_path / "scontrol"
    program.write_text(SCONTROL)
    program.chmod(0o755)
    (tmp_path / "scontrol.says").write_text(says)
    run = RunDir(str(tmp_path))
    run.write("state.json", {"phase": "running", "pid": 1, "start": 0, "supervisor": [1, 0], "job_restarts": 0})
    run.write("job.json", {"id": "7", "bin": str(tmp_path), "name": "x", "state": "RUNNING", "restarts": 0})

    found = run.state()

    assert (found["phase"], found["job"]["state"]) == (phase, state)
    assert trouble in found["job"].get("trouble", "")


@pytest.mark.parametrize(
    "sacct,state,over,trouble",
    [
        ("echo 'CANCELLED by 0|0:15|node3'", "CANCELLED", True, ""),
        ("echo 'Slurm accounting storage is disabled' >&2; exit 1", "FORGOTTEN", True, ""),
        ("echo 'sacct: error: Connection refused' >&2; exit 1", "RUNNING", None, "sacct: Connection refused"),
    ],
)
def test_the_accounting_is_asked_for_what_the_controller_forgot(
    tmp_path: Path, sacct: str, state: str, over: bool | None, trouble: str
) -> None:
    """Where there is none, the end that the supervisor wrote is all; one that is silent is asked again later."""
    for name, text in {"scontrol": "echo 'Invalid job id specified' >&2; exit 1", "sacct": sacct}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    run = RunDir(str(tmp_path))
    run.write("job.json", {"id": "7", "bin": str(tmp_path), "name": "x", "state": "RUNNING", "restarts": 0})

    found = agent_slurm.look(run)

    assert (found["state"], found.get("over"), found.get("trouble", "")) == (state, over, trouble)


def verdict(phase: str, **told: Any) -> tuple[str, str, str]:
    """What diagnose says of a run whose job is as ``told``."""
    run = {"phase": phase, "exit": TERMINATED if phase == "exited" else None, "job": {"id": "7", **told}}
    found = judge(diagnose_cases.evidence({"tp": 1, "upto": "weights", "live": {"processes": []}, "run": run}))
    return found.name, found.summary, found.remedy


TERMINATED = {"code": None, "signal": "SIGTERM", "oom": False, "time": 999990.0}


def test_what_slurm_did_comes_before_what_a_signal_tells() -> None:
    """SIGTERM may be a time limit; a server that failed by itself is judged as on any host; a wait is no hang."""
    limit = verdict("exited", state="TIMEOUT", over=True, limit="01:00:00")
    own = verdict("exited", state="FAILED", over=True, exit="1:0")
    waits = verdict("pending", state="PENDING", reason="Priority", place=3, of=4, partition="gpu")
    stands = verdict("running", state="SUSPENDED", node="node3")

    assert limit[0] == "job-ended-by-scheduler" and "reached its time limit of 01:00:00" in limit[1]
    assert "raise servers." in limit[2] and "<name>" not in limit[2]
    assert own[0] == "launcher-killed"
    assert stands[0] == "job-suspended" and "stands still: job 7 SUSPENDED on node3" in stands[1]
    assert "scontrol resume 7" in stands[2]
    assert waits[0] == "queued" and "job 7 PENDING (Priority), number 3 of 4 waiting in gpu" in waits[1]


PARTITIONS = "gpu*|up|infinite|infinite|0/4/0/4\nshort|up|n/a|5:00|0/1/0/1\nnight|up|8:00:00|12:00:00|2/0/0/2\n"


@pytest.mark.parametrize(
    "asked,refused",
    [
        ({}, False),
        ({"partition": "short"}, True),
        ({"partition": "short", "time": "UNLIMITED"}, False),  # Slurm will say what it thinks of that
        ({"partition": "short", "time": "0"}, False),
        ({"partition": "night"}, False),
        ({"partition": "gpu,night", "time": "9:59"}, True),
        ({"partition": "gpu,short"}, False),
        ({"partition": "short", "options": ["--time=20"]}, False),  # sbatch's own options win
        ({"partition": "short", "options": ["--partition=gpu"]}, False),
        ({"time": "10:00"}, False),
    ],
)
def test_less_time_than_a_launch_takes_is_refused(asked: dict[str, str], refused: bool) -> None:
    """Good runs took ten minutes to be healthy: a limit of the inventory counts before one of the partition."""
    given: dict[str, Any] = {"name": "s", "host": "h", "model": "m", "executor": "slurm", "slurm": asked}
    server = ServerSpec.model_validate(given)

    with pytest.raises(HsopsError, match="good runs of s took 600 s") if refused else nullcontext():
        job.judge(server, "h", PARTITIONS, 600.0)
    job.judge(server, "h", PARTITIONS, None)


def slurm(folder: Path, **programs: str) -> Path:
    """Commands of Slurm that are shell scripts. Each call is a line of ``folder/calls``."""
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{folder}/calls\n{text}\n')
        (folder / name).chmod(0o755)
    return folder


def calls(folder: Path, name: str) -> list[str]:
    """How one of them was called."""
    path = folder / "calls"
    return [line for line in path.read_text().splitlines() if line.startswith(f"{name} ")] if path.exists() else []


def job_run(state_dir: Path, bin_: Path, number: int = 1, **job: Any) -> RunDir:
    """A run that is a job."""
    run = RunDir(str(state_dir / f"runs/1201-10000{number}-000{number}"))
    Path(run.path).mkdir(parents=True)
    run.write("spec.json", {"server": "tiny", "created": time.time(), "argv": [], "dump_dir": "", **SPEC})
    known = {"id": str(number), "name": f"hsops-{run.id}", "bin": str(bin_), "state": "RUNNING", "restarts": 0}
    run.write("job.json", {**known, **job})
    return run


SPEC: dict[str, Any] = {"tp": 1, "port": 1, "spec_hash": "s", "patches": {}, "sglang": ""}
UNABLE = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"


def test_a_silent_controller_is_asked_once_and_for_the_runs_that_are_wanted(tmp_path: Path) -> None:
    """Each question takes eight seconds then, and a list of runs has thirty."""
    folder = slurm(tmp_path / "bin", scontrol=UNABLE)
    for number in range(1, 5):
        job_run(tmp_path, folder, number)
    other = job_run(tmp_path, folder, 9)
    other.write("spec.json", {**other.read("spec.json"), "server": "other"})

    def listed(server: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = list_runs({"state_dir": str(tmp_path), "server": server})["runs"]
        return found

    none = listed("nobody"), calls(folder, "scontrol")
    found = listed("tiny")

    assert none == ([], [])
    assert len(found) == 4 and all("Unable to contact" in run["job"]["trouble"] for run in found)
    assert calls(folder, "scontrol") == ["scontrol -o show job 4"]


def test_a_stop_that_fails_leaves_no_sign_of_one(tmp_path: Path) -> None:
    """The server lives on; its end would read as stopped, and a requeued job would not start again."""
    running = "echo JobId=1 JobState=RUNNING Restarts=0"
    folder = slurm(tmp_path / "bin", scontrol=running, scancel=UNABLE)
    run = job_run(tmp_path, folder)

    with pytest.raises(Refusal, match="scancel: Unable to contact") as refused:
        stop._cancel(run, Unwritten({}))
    none = os.path.exists(f"{run.path}/stop.json")
    run.write("stop.json", {"by": "an earlier stop, which reached Slurm"})
    with pytest.raises(Refusal):
        stop._cancel(run, Unwritten({}))

    assert refused.value.code == "slurm-silent" and not none
    assert run.read("stop.json")["by"].startswith("an earlier stop")


def test_a_submission_that_was_cut_off_is_cancelled_by_its_name(tmp_path: Path) -> None:
    """It has no number yet; should it get one meanwhile, it is cancelled by that too."""
    bin_ = tmp_path / "bin"
    folder = slurm(
        bin_,
        squeue=f"test $(grep -c squeue {bin_}/calls) -lt 3 || echo 7",
        scontrol=f"grep -q 'scancel 7' {bin_}/calls && s=CANCELLED || s=PENDING; echo JobId=7 JobState=$s",
        scancel="",
    )
    run = job_run(tmp_path, folder, id=None, state="PENDING")

    before = parse_job(agent_slurm.look(run))
    ended = stop._cancel(run, Unwritten({}))["run"]

    assert str(before) == "a job that Slurm does not know, and may still take"
    assert calls(folder, "scancel") == [f"scancel --name=hsops-{run.id}", "scancel 7"]
    assert (ended["phase"], ended["job"]["id"], ended["job"]["state"]) == ("stopped", "7", "CANCELLED")


@pytest.mark.parametrize(
    "reason,priority,held",
    [("job_requeued_in_held_state", 0, True), ("Priority", 12, False), ("Dependency", 0, False), ("None", 0, True)],
)
def test_a_job_without_priority_is_held(tmp_path: Path, reason: str, priority: int, held: bool) -> None:
    """Slurm has many words for why; all of such a job's wait is for a person."""
    told = f"echo JobId=1 Priority={priority} JobState=PENDING Reason={reason} Restarts=1"
    run = job_run(tmp_path, slurm(tmp_path / "bin", scontrol=told, squeue=""))

    found = parse_job(agent_slurm.look(run))

    assert found and (found.held, found.hopeless, found.suspended) == (held, held, False)


def test_a_job_that_slurm_never_took_is_told_without_a_number() -> None:
    """Nobody ever gave it one."""
    never = Job("", "NOT_SUBMITTED", over=True)

    assert str(never) == "a job that Slurm never took"
    assert never.cause == "its job was never taken by Slurm: sbatch was cut off"


@dataclass
class Stopping:
    """A lock whose host answers every verb with what ``_cancel`` has come to."""

    told: dict[str, Any]
    agent: Agent

    def call(self, _: str, **__: Any) -> dict[str, Any]:
        """The reply to run-stop."""
        return {"stopped": [self.told], "beside": None, "unwritten": []}


@pytest.mark.parametrize("phase", ["running", "exited"])
def test_a_long_epilog_is_no_process_that_outlives_sigkill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """The job is told, not a pid of another host; whatever is known of the server, it has not ended."""
    monkeypatch.setattr(agent_slurm, "END_S", 0.1)
    folder = slurm(tmp_path / "bin", scontrol="echo JobId=1 JobState=COMPLETING NodeList=node3 Restarts=0", scancel="")
    run = job_run(tmp_path, folder)
    run.write("state.json", {"phase": phase, "pid": 712, "start": 1, "job_restarts": 0, "started": 1.0, "exit": None})

    agent = Agent(LocalHost("login"), python=sys.executable, state_dir=str(tmp_path))
    lock: Any = Stopping(stop._cancel(run, Unwritten({})), agent)
    (stopped,) = stop_server(lock, "tiny")
    (fault,) = faults("login", stopped)
    lines = list(host_lines([("login", stopped)], {}, many=False))
    with pytest.raises(UnhealthyError) as in_the_way:
        _clear(lock, stopped.run, ignore)

    assert stopped.left == stopped.ended == ()
    assert fault["message"] == "job 1 COMPLETING: not ended yet" and "squeue -j 1" in fault["fix"]
    assert fault["why"] == in_the_way.value.why and "an epilog still runs on node3" in fault["why"]
    assert in_the_way.value.message == f"run {run.id} has not ended: job 1 COMPLETING"
    assert lines[0].startswith(f"tiny: run {run.id} not ended after ") and lines[-1].strip() == fault["fix"]
    assert "712" not in json.dumps([fault, in_the_way.value.as_json(), lines])


def test_who_follows_a_job_asks_less_and_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of ``logs -f``: every second in the beginning, every 15 s in the end."""
    folder = slurm(tmp_path / "bin", scontrol="echo JobId=1 JobState=RUNNING Restarts=0")
    run, clock = job_run(tmp_path, folder), [1000.0]
    monkeypatch.setattr(agent_slurm, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))

    for _ in range(3600):
        clock[0] += 1
        run.running()

    assert 3600 / 15 < len(calls(folder, "scontrol")) < 3600 / 15 + 20


def test_a_job_inherits_the_environment_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch hands its own on, to the server; what only makes answers readable is for the other commands."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.delenv("SLURM_TIME_FORMAT", raising=False)
    show = 'echo "$LC_ALL,$SLURM_TIME_FORMAT"'
    folder = str(slurm(tmp_path / "bin", sbatch=show, scontrol=show))

    assert agent_slurm.told(folder, "sbatch") == "de_DE.UTF-8,\n"
    assert agent_slurm.told(folder, "scontrol") == "C,%s\n"


def test_a_hidden_partition_is_one(tmp_path: Path) -> None:
    """sinfo tells of it only when asked for all; whoever knows its name may submit there."""
    folder = slurm(
        tmp_path / "bin", sinfo="""case " $* " in *" -a "*) echo "own|up|infinite|infinite|0/1/0/1";; esac"""
    )
    asked = {"partition": "own", "bin": str(folder)}
    given: dict[str, Any] = {"name": "s", "host": "h", "model": "m", "executor": "slurm", "slurm": asked}
    agent = Agent(LocalHost("login"), python=sys.executable, state_dir=str(tmp_path))

    queue.check(agent, ServerSpec.model_validate(given), None)


def test_a_login_node_is_surveyed_within_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks, what it has, and what does not answer; never an exception."""
    monkeypatch.setenv("PATH", "/nowhere")
    config = 'test "$*" = "show config" && echo "AccountingStorageType   = accounting_storage/none"'
    whole = slurm(tmp_path / "whole", sinfo='echo "$*"', scontrol=config, sbatch="", srun="", squeue="", scancel="")
    half = slurm(tmp_path / "half", sinfo=UNABLE, scontrol="")
    hangs = slurm(tmp_path / "hangs", sinfo="exec /bin/sleep 60")

    def survey(folder: Path) -> dict[str, Any]:
        return agent_slurm.survey(str(folder), ["-a", "-h"], 0.5 if folder == hangs else 10.0)

    store = "accounting_storage/none"
    assert survey(whole) == {"lacks": [], "partitions": "-a -h\n", "accounting": store, "trouble": ""}
    lacks = ["sbatch", "squeue", "scancel", "srun"]
    assert (survey(half)["lacks"], survey(half)["partitions"]) == (lacks, "")
    assert survey(half)["trouble"].startswith("sinfo: Unable to contact slurm controller")
    assert survey(hangs)["trouble"] == "sinfo gave no answer in 0.5 s"
    assert survey(tmp_path / "none")["trouble"] == "" and len(survey(tmp_path / "none")["lacks"]) == 6


def test_a_dump_folder_without_its_mark_may_also_have_been_emptied(tmp_path: Path) -> None:
    """A job waits for days; somebody made room meanwhile."""
    run = job_run(tmp_path, tmp_path)
    more = {"wanted_port": 0, "listen": "127.0.0.1", "dump_dir": str(tmp_path / "dumps")}
    run.write("spec.json", {**run.read("spec.json"), **more})

    with pytest.raises(Refusal, match="or it was emptied while the job waited"):
        agent_job._settled(run)
    run.write(agent_slurm.mark(str(tmp_path / "dumps")), {"run": run.id})

    assert agent_job._settled(run)["port"]


@pytest.mark.parametrize("over,kinds", [(False, []), (True, ["no-supervisor"])])
def test_what_a_job_that_is_not_over_has_here_is_no_orphan(tmp_path: Path, over: bool, kinds: list[str]) -> None:
    """Login node and compute node may be one machine. What a job leaves behind there is an orphan, of a known run."""
    run = job_run(tmp_path, slurm(tmp_path / "bin", scontrol=UNABLE), over=over)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, procs.MARK: run.id}) as process:
        try:
            until(lambda: run.id in procs.marks(process.pid), 60.0)
            seen = _Seen({"state_dir": str(tmp_path)}, gpus=False)
        finally:
            process.kill()

    assert seen.ours[process.pid] == run.id
    assert [kind for pid, kind in seen.kinds().items() if pid == process.pid] == kinds
