"""A job as Slurm tells it, what it is asked for, and what may be written about it in an inventory."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import slurm as agent_slurm
from hsops.agent.rundir import RunDir
from hsops.core.errors import ConfigError, HsopsError
from hsops.core.inventory import ServerSpec, SlurmSpec
from hsops.core.inventory_file import load
from hsops.core.slurm import Job, parse_job, seconds_of
from hsops.diagnose import judge
from hsops.launch import job
from hsops.remote.job import step
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

    assert limit[0] == "job-ended-by-scheduler" and "reached its time limit of 01:00:00" in limit[1]
    assert "raise servers." in limit[2] and "<name>" not in limit[2]
    assert own[0] == "launcher-killed"
    assert waits[0] == "queued" and "job 7 PENDING (Priority), number 3 of 4 waiting in gpu" in waits[1]


PARTITIONS = "gpu*|infinite|infinite\nshort|n/a|5:00\nnight|8:00:00|12:00:00\n"


@pytest.mark.parametrize(
    "asked,refused",
    [
        ({}, False),
        ({"partition": "short"}, True),
        ({"partition": "short", "time": "UNLIMITED"}, False),  # Slurm will say what it thinks of that
        ({"partition": "short", "time": "0"}, False),
        ({"partition": "night"}, False),
        ({"partition": "gpu,night", "time": "9:59"}, True),
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
