"""The doctor's rules about a login node: what its Slurm tells, against what the servers ask of it."""

from __future__ import annotations

from typing import Any

import pytest

from hsops.core.inventory import ServerSpec
from hsops.core.partitions import parse_partitions
from hsops.doctor.examine import judge
from hsops.doctor.findings import Facts, Finding, Wanted
from tests.unit.test_doctor import good

SINFO = """\
gpu*|up|infinite|infinite|1/3/0/4
short|up|n/a|5:00|0/2/0/2
mended|down|infinite|infinite|0/0/2/2
dark|up|infinite|infinite|0/0/2/2
full|inact|infinite|infinite|0/2/0/2
"""


def examine(
    slurm: dict[str, Any], *, usual: float | None = None, found: dict[str, Any] | None = None, **raw: Any
) -> list[Finding]:
    """Findings of a login node with eight GPUs of its own less than its server wants."""
    given = {"name": "kimi", "host": "login", "model": "m", "tp": 16, "executor": "slurm", "slurm": slurm}
    job = ServerSpec.model_validate(given)
    told = {"lacks": [], "partitions": SINFO, "accounting": "accounting_storage/slurmdbd", "trouble": ""}
    facts = {**good(), f"slurm {job.slurm.bin or ''}": {**told, **(found or {})}, **raw}
    wanted = Wanted("kimi", "m", 16, None, "", job)
    return judge(Facts(facts, [wanted], "/shared/hs", skew_s=0.1, usual_s={"kimi": usual}))


def test_a_login_node_where_all_is_well() -> None:
    """Its own GPUs are not those that count, and it says that it does not know those."""
    held = {"pid": "4121", "mib": "72704", "uuid": "GPU-3", "command": "python train.py"}

    (only,) = examine({"partition": "gpu", "account": "drafts"}, holders=[held])

    assert (only.level, only.what) == (
        "note",
        "its servers are jobs of Slurm: nothing is known of their nodes' GPUs",
    )


@pytest.mark.parametrize(
    "slurm,more,level,what",
    [
        ({"partition": "gqu"}, {}, "blocker", "kimi: Slurm has no partition 'gqu'; did you mean 'gpu'?"),
        ({"partition": "gpu,nigth"}, {}, "blocker", "kimi: Slurm has no partition 'gpu,nigth'"),
        ({"partition": "mended"}, {}, "blocker", "kimi: partition mended is down"),
        ({"partition": "full"}, {}, "blocker", "kimi: partition full is inact"),
        ({"partition": "dark"}, {}, "warning",
         "kimi: partition dark has no node that can be had: 2 down, drained or failing"),
        ({"partition": "short", "time": "10"}, {}, "warning",
         "kimi: slurm.time is 10, and partition short ends a job after 5:00"),
        ({"partition": "short", "time": "UNLIMITED"}, {}, "warning",
         "kimi: slurm.time is UNLIMITED, and partition short ends a job after 5:00"),
        ({"partition": "short"}, {"usual": 301.0}, "blocker",
         "kimi: the limit of partition short is 300 s, and good runs of kimi took 301 s to be healthy"),
        ({}, {"found": {"partitions": SINFO.replace("*", "")}}, "warning",
         "kimi: Slurm has no default partition"),
        ({"bin": "/opt/s"}, {"found": {"lacks": ["sbatch", "srun"]}}, "blocker", "no sbatch, srun in /opt/s"),
        ({}, {"found": {"lacks": ["squeue"]}}, "blocker", "no squeue on the PATH"),
        ({}, {"found": {"partitions": "", "accounting": "", "trouble": "sinfo gave no answer in 8 s"}}, "blocker",
         "Slurm's controller does not answer: sinfo gave no answer in 8 s"),
        ({}, {"slurm ": None, "could_not": [{"look": "slurm ", "why": "timed-out", "message": "no answer within 9 s"}]},
         "blocker", "Slurm's controller does not answer: no answer within 9 s"),
        ({"account": "drafts", "qos": "long"}, {"found": {"accounting": "accounting_storage/none"}}, "warning",
         "kimi: slurm.account and qos without accounting"),
        ({}, {"found": {"accounting": "accounting_storage/none"}}, "note", "no accounting (sacct)"),
        ({}, {"state": {"path": "/run/h", "type": "tmpfs", "source": "tmpfs", "options": "rw"}}, "blocker",
         "/run/h (state_dir) lies on tmpfs"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_login_node(slurm: dict[str, Any], more: dict[str, Any], level: str, what: str) -> None:
    """Each is told once, with why, and with what to do where it is more than a note."""
    findings = [one for one in examine(slurm, **more) if one.what == what]

    assert [one.level for one in findings] == [level], examine(slurm, **more)
    assert all(one.why and (one.fix or level == "note") for one in findings)


@pytest.mark.parametrize("slurm", [{"partition": "mended,gpu"}, {"partition": "short,gpu", "time": "10"}])
def test_of_several_partitions_one_is_enough(slurm: dict[str, Any]) -> None:
    """Slurm takes whichever has room first."""
    assert [one.level for one in examine(slurm)] == ["note"]


@pytest.mark.parametrize("options", [["--partition=own"], ["-p", "own"], ["-pown"], ["--partition", "own"]])
def test_what_is_given_to_sbatch_as_it_is_is_judged_by_slurm(options: list[str]) -> None:
    """It wins over the fields, and may be more than a name."""
    assert [one.level for one in examine({"partition": "gqu", "options": options})] == ["note"]


def test_a_shared_state_folder_is_what_a_job_needs() -> None:
    """Nobody is told to move it to the login node's own disk."""
    nfs = {"path": "/shared/h", "type": "nfs4", "source": "nas:/h", "options": "rw"}

    (warning,) = [one for one in examine({}, state=nfs) if one.level == "warning"]

    assert warning.what == "/shared/h (state_dir) lies on nfs4 (nas:/h)"
    assert warning.fix.startswith("name one login node in hosts.<name>.ssh")


def test_what_sinfo_prints_besides_is_left_out() -> None:
    """A site's own banner, say; and a cluster without partitions has none."""
    assert parse_partitions("Welcome | to the | big\ncluster\n") == ()
    (only,) = parse_partitions("motd\ngpu*|up|infinite|1-00:00:00|0/1K/0/1K\n")

    assert (only.name, only.default, only.longest, only.gone, only.nodes) == ("gpu", True, "1-00:00:00", "0", "1K")
