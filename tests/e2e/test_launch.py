"""Launch, status, logs, stop on a real SGLang at TP 2, over SSH."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hsops.agent import procs
from hsops.lab import Lab
from tests.e2e.cli import Cli
from tests.running import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def hsops(lab: Lab) -> Iterator[Cli]:
    """hsops on the lab, with hs-dump deployed while these tests run."""
    cli = Cli(lab.inventory)
    done = cli("deploy", "--yes")
    assert done.returncode == 0, done.stderr
    yield cli
    assert cli("deploy", "--revert", "--yes").returncode == 0


@pytest.fixture(autouse=True)
def clean(hsops: Cli) -> Iterator[None]:
    """Every test leaves no server behind."""
    yield
    assert hsops("stop", "--grace", "1").returncode == 0  # SGLang itself takes five to ten seconds


def run_of(hsops: Cli) -> dict[str, Any]:
    """The newest of the lab's server; other tests may have left the record of another server's."""
    return dict(next(run for run in hsops.json("status")["data"]["runs"] if run["server"] == "tiny"))


def healthy_run(hsops: Cli, *, within_s: float = 300) -> dict[str, Any]:
    """The run, once it answers: at once where it was healthy a moment ago, save on a machine that keeps it waiting."""
    until = time.monotonic() + within_s
    while (run := run_of(hsops))["health"] != "healthy":
        assert time.monotonic() < until, run
    return run


def members(run: dict[str, Any]) -> dict[int, str]:
    """Processes of a run, whoever their parent is: pid -> title."""
    snapshot = procs.Snapshot()
    own = snapshot.shows(run["id"], run["log"])
    return {pid: procs.title(pid) for pid in own if not snapshot.everyone[pid].zombie}


def events(client: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert client.stdout
    for line in client.stdout:
        yield json.loads(line)


def test_a_day(hsops: Cli, tmp_path: Path) -> None:
    """Killed while it waits, picked up, left alone when healthy, looked at, refused a rival, stopped whole."""
    client = hsops.start("launch", "--wait-healthy", "--json")
    first = next(event for event in events(client) if event.get("event") == "run-followed")
    client.kill()
    client.communicate()

    picked_up = hsops("launch", "--wait-healthy")
    run = healthy_run(hsops)
    again = hsops("launch", "--wait-healthy")
    while again.returncode == 0 and "picked up" in again.stderr:  # /health was not heard within a launch's few seconds
        healthy_run(hsops)
        again = hsops("launch", "--wait-healthy")
    rival = hsops.changed(tmp_path / "rival.yaml", env={"OMP_NUM_THREADS": "2"})("launch")
    taken = _second_server(hsops, tmp_path / "taken.yaml", run["port"])
    log = subprocess.run(hsops.argv("logs"), capture_output=True, check=True, timeout=120).stdout
    of_rank = subprocess.run(hsops.argv("logs", "--rank", "1"), capture_output=True, check=True, timeout=120).stdout
    wanted = Path(run["log"]).read_bytes()
    lately = hsops("logs", "--since", "0s")
    wrong = hsops.json("logs", "--errors")["data"]
    stopped = hsops.json("stop")

    assert picked_up.returncode == 0, picked_up.stderr
    assert f"run {first['run']} picked up" in picked_up.stderr and "healthy after" in picked_up.stdout
    assert again.returncode == 0 and "already healthy, nothing to do" in again.stdout
    assert (run["id"], run["phase"], run["health"], run["tp"]) == (first["run"], "running", "healthy", 2)
    assert run["ranks"] == {"TP0": None, "TP1": None}
    assert {said["rank"] for said in run["hellos"]} == {0, 1} and all(said["ok"] for said in run["hellos"])
    assert rival.returncode == 1 and "--replace" in rival.stderr
    assert taken.returncode == 1 and f"port {run['port']} is taken by pid {run['pid']}" in taken.stderr
    assert log and wanted.startswith(log)
    assert b" TP1] " in of_rank and b" TP0] " not in of_rank
    assert all(line + b"\n" in wanted for line in of_rank.splitlines())
    assert (lately.returncode, lately.stdout) == (0, "")
    assert (wrong["cause"], wrong["errors"]) == (None, [])
    assert stopped["ok"] and stopped["data"]["left"] == 0
    assert len(stopped["data"]["stopped"][0]["ended"]) >= 4
    assert not members(run)
    assert "nothing is running" in hsops("stop").stdout


def test_death_of_a_rank_ends_the_launch(hsops: Cli, lab: Lab) -> None:
    """kill -9 of a rank while it starts: the launch fails at once and says who, how and what was logged."""
    for _ in range(3):  # where this process was kept waiting until the server was up, once more
        code, took, last = _killed_while_it_starts(hsops, lab)
        if code != 0:
            break
        assert hsops("stop", "--grace", "1").returncode == 0

    assert code == 7
    assert took < 20, took  # 0.6 s on a quiet machine; a death that only a time-out shows takes 20 s and more
    assert last["errors"][0]["type"] == "UnhealthyError" and "TP1" in json.dumps(last["errors"])
    assert "SIGKILL" in json.dumps(last["errors"])


def _killed_while_it_starts(hsops: Cli, lab: Lab) -> tuple[int, float, dict[str, Any]]:
    """Exit code of a launch whose TP1 is killed once the ranks have met, seconds from then on, and its last line."""
    client = hsops.start("launch", "--wait-healthy", "--json")
    killed, state, last = 0.0, Path(), dict[str, Any]()

    def ranks() -> dict[str, int]:
        pids: dict[str, int] = json.loads(state.read_text())["rank_pids"]
        return pids

    for last in events(client):
        if last.get("event") == "run-followed":
            state = lab.layout.state / "runs" / last["run"] / "state.json"
        if last.get("event") == "stage-done" and last["stage"] == "distributed":
            wait_for(lambda: "TP1" in ranks(), "its supervisor has seen the rank")
            killed = time.monotonic()
            os.kill(ranks()["TP1"], signal.SIGKILL)  # hsops status would take as long as the rest of the start
    took = time.monotonic() - killed
    client.communicate()
    return client.returncode, took, last


def test_ctrl_c_leaves_the_server(hsops: Cli) -> None:
    """Ctrl-C ends the watch with 130 and says that the server stays; it does."""
    client = hsops.start("launch", "--wait-healthy")
    assert client.stderr
    next(line for line in client.stderr if "started" in line)

    client.send_signal(signal.SIGINT)
    out, _ = client.communicate(timeout=120)

    run = run_of(hsops)
    assert client.returncode == 130
    assert "tiny stays" in out and run["phase"] == "running"


@pytest.mark.parametrize(
    "fields,words",
    [
        ({"model": "/no/such/model"}, "there is no model at /no/such/model"),
        ({"args": {"disable-radix-cache": False}}, "servers.tiny.args.disable-radix-cache"),
        (
            {"args": {"enable-dp-attention": True}},
            "servers.tiny.args.enable-dp-attention: not together with the hs-dump",
        ),
        ({"args": {"tp": 4}}, "servers.tiny.args.tp"),
        ({"env": {"NCCL_P2P_LEVL": "SYS"}}, "did you mean NCCL_P2P_LEVEL?"),
        (
            {"args": {"enforce-eager": True}},
            "servers.tiny.args.enforce-eager: SGLang 0.5.9 has no flag --enforce-eager",
        ),
        ({"args": {"attention-backend": "torch_nativ"}}, "did you mean torch_native?"),
        ({"args": {"max-total-token": "many"}}, "expected a whole number, got 'many'"),
    ],
)
def test_mistakes_start_nothing(hsops: Cli, tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    """What cannot work is refused with its reason before anything starts."""
    wrong = hsops.changed(tmp_path / "wrong.yaml", **fields)

    done = wrong("launch", "--wait-healthy")

    assert done.returncode in (1, 4) and words in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not [run for run in hsops.json("status")["data"]["runs"] if run["phase"] == "running"]


def test_what_the_patch_needs_is_added_and_told(hsops: Cli) -> None:
    """The inventory does not say it; a server on a CPU needs nothing against prefill graphs."""
    told = hsops.json("launch", "--check")["data"]["plan"]

    assert "--disable-radix-cache" in told["argv"] and not [w for w in told["argv"] if w.endswith("prefill-cuda-graph")]
    assert [note.split(":")[0] for note in told["notes"]] == ["added --disable-radix-cache"]


def test_a_breach_that_only_the_ranks_see_ends_the_launch(hsops: Cli, tmp_path: Path) -> None:
    """A file of --config turns mixed chunks on behind the inventory's back: both ranks refuse, and extract does too."""
    (tmp_path / "behind.yaml").write_text("enable-mixed-chunk: true\n")
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "input_ids": [1, 2, 3]}\n')
    behind = hsops.changed(tmp_path / "wrong.yaml", args={"config": str(tmp_path / "behind.yaml")})

    done = behind("launch", "--wait-healthy")
    status = behind("status").stdout
    healthy_run(behind)  # the launch has given it up before that
    extracted = behind("extract", str(tmp_path / "prompts.jsonl"))

    assert done.returncode == 7 and "Traceback" not in done.stderr
    assert "TP0, TP1 do not capture: enable_mixed_chunk=True" in done.stderr
    assert "launch without --enable-mixed-chunk" in done.stderr and "the file of --config" in done.stderr
    assert "CAPTURES NOTHING" in status
    assert extracted.returncode == 7 and "would write no dumps: TP0, TP1 do not capture" in extracted.stderr


def test_a_dump_folder_that_cannot_be_written_starts_nothing(hsops: Cli, tmp_path: Path) -> None:
    """The folder, the reason and the key of the inventory are named."""
    content = yaml.safe_load(hsops.inventory.read_text())
    content["hosts"]["lab"]["dumps"] = "/proc/nowhere"
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(content))

    done = Cli(tmp_path / "wrong.yaml")("launch", "--wait-healthy")

    assert done.returncode == 1
    assert "dumps cannot be written to /proc/nowhere/tiny" in done.stderr and "hosts.lab.dumps" in done.stderr
    assert not [run for run in hsops.json("status")["data"]["runs"] if run["phase"] == "running"]


def test_a_bad_value_that_only_sglang_can_tell_is_named(hsops: Cli, tmp_path: Path) -> None:
    """A value that a function of SGLang's own converts ends the launch with SGLang's own words."""
    wrong = hsops.changed(tmp_path / "wrong.yaml", args={"mm-process-config": "oops"})

    done = wrong("launch", "--wait-healthy")

    told = wrong.json("logs", "--errors")["data"]["cause"]
    assert done.returncode == 7
    assert "argument --mm-process-config: invalid" in done.stderr
    assert told["id"] == "bad-flag" and "argument --mm-process-config: invalid" in told["text"]


def _second_server(hsops: Cli, path: Path, port: int) -> subprocess.CompletedProcess[str]:
    """Launch another server on the same port."""
    content = yaml.safe_load(hsops.inventory.read_text())
    content["servers"]["second"] = {**content["servers"]["tiny"], "port": port}
    path.write_text(yaml.safe_dump(content))
    return Cli(path)("launch", "second")
