"""Diagnosis of a real SGLang at TP 2, over SSH: healthy, stopped, killed, spinning, slow, crashed, misconfigured."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hsops import lab as labs
from hsops.agent.probe_tools import state, tracer
from hsops.lab import Lab
from tests.e2e.cli import Cli
from tests.running import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

MOVING = {"starting", "loading", "healthy", "healthy-loaded"}


@pytest.fixture(scope="module")
def hsops(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """hsops on the lab; its server has no patch."""
    return Cli(lab.inventory).changed(tmp_path_factory.mktemp("inventory") / "inventory.yaml", patches=[])


@pytest.fixture(autouse=True)
def clean(hsops: Cli, lab: Lab) -> Iterator[None]:
    """Every test leaves no server and no fault behind."""
    yield
    assert hsops("stop", "--grace", "1").returncode == 0
    labs.up(lab.layout.home)


def look(hsops: Cli, *words: str) -> dict[str, Any]:
    """The verdict of ``hsops diagnose``."""
    verdict: dict[str, Any] = hsops.json("diagnose", *words)["data"]["verdict"]
    return verdict


def run_of(hsops: Cli) -> dict[str, Any]:
    """The newest run of the lab's server; other tests may have left the record of another server's."""
    return dict(next(run for run in hsops.json("status")["data"]["runs"] if run["server"] == "tiny"))


def rank_pids(hsops: Cli) -> dict[str, int]:
    """By rank."""
    pids: dict[str, int] = run_of(hsops)["rank_pids"]
    return pids


def cited(verdict: dict[str, Any], source: str) -> str:
    """What a verdict cites from one source."""
    return "\n".join(e["text"] for e in verdict["evidence"] if e["source"] == source)


def test_healthy_then_stopped_then_killed(hsops: Cli, tmp_path: Path) -> None:
    """An idle server is healthy although its ranks are busy; a stopped rank is named; so is a killed one."""
    assert hsops("launch", "--wait-healthy").returncode == 0
    pids = rank_pids(hsops)

    healthy = look_until_healthy(hsops)
    os.kill(pids["TP1"], signal.SIGSTOP)
    wait_for(lambda: state(pids["TP1"]) == "T", "the rank stands still")
    stopped = look(hsops)
    os.kill(pids["TP1"], signal.SIGCONT)
    look_until_healthy(hsops)
    os.kill(pids["TP1"], signal.SIGKILL)
    until_ended(hsops)
    keep = ("--save", str(tmp_path / "evidence"), "--html", str(tmp_path / "page.html"))
    killed, exit_code = look(hsops, *keep), hsops("diagnose").returncode
    replayed = look(hsops, "--bundle", str(tmp_path / "evidence"))

    assert (healthy["class"], healthy["host"]) == ("healthy", "lab")
    assert (stopped["class"], stopped["rank"], stopped["confidence"]) == ("rank-stopped", 1, "high")
    assert (killed["class"], killed["rank"]) == ("rank-killed", 1)
    assert exit_code == 7
    assert replayed == killed
    assert "rank-killed" in (tmp_path / "page.html").read_text()


def look_until_healthy(hsops: Cli) -> dict[str, Any]:
    """The verdict on a healthy server: at once, or that it moves where a busy machine keeps its answer back."""
    until = time.monotonic() + 120
    while (verdict := look(hsops))["class"] != "healthy":
        assert verdict["class"] in MOVING and time.monotonic() < until, json.dumps(verdict)
    return verdict


def look_until_certain(hsops: Cli, name: str) -> dict[str, Any]:
    """The verdict ``name`` with high confidence. Every look before it names the same, or a start that is young still.

    Good runs on a busy machine took as long, and there a look may have no time for what would make it certain; then
    its next step is another look.
    """
    until = time.monotonic() + 180
    while ((verdict := look(hsops))["class"], verdict["confidence"]) != (name, "high"):
        told = json.dumps(verdict)
        assert verdict["class"] == "starting" or (verdict["class"] == name and "again" in verdict["next_probe"]), told
        assert time.monotonic() < until, told
    return verdict


def until_ended(hsops: Cli) -> None:
    """A killed rank takes the server along within seconds; the supervisor has recorded it when status says so."""
    until = time.monotonic() + 120
    while run_of(hsops)["phase"] == "running":
        assert time.monotonic() < until


@pytest.mark.parametrize("fault,port", [("busy-wait", "nobody listens"), ("busy-wait-warmup", "503")])
def test_a_busy_wait_is_named(hsops: Cli, lab: Lab, fault: str, port: str) -> None:
    """The seeds' hang, before the port opens and after: the launch ends with 7 and its name and leaves the server.

    Whoever looks again hears the same with high confidence, and no process is left traced. A launch that is told to
    stop what fails does.
    """
    labs.up(lab.layout.home, fault=fault)
    launch = hsops("launch", "--wait-healthy", "--stall-after", "21", "--json")  # past 20 s of patience
    pids = rank_pids(hsops)

    verdict = look_until_certain(hsops, "warmup-deadlock-busy-wait")

    launched = json.loads(launch.stdout.splitlines()[-1])
    assert launch.returncode == 7 and not launched["ok"], launch.stderr
    assert launched["data"]["verdict"]["class"] == "warmup-deadlock-busy-wait", launched
    assert launched["data"]["stalled"]["silent_s"] >= 10
    assert run_of(hsops)["phase"] == "running"
    assert verdict["rank"] is None
    assert "2 of 2 ranks in spin" in cited(verdict, "stacks")
    assert "eventfd" in cited(verdict, "threads")
    assert "nothing is hidden" in cited(verdict, "files")
    assert port in cited(verdict, "http")
    assert [(tracer(pid), state(pid) in ("R", "S")) for pid in pids.values()] == [(0, True)] * len(pids)
    given_up = hsops("launch", "--wait-healthy", "--timeout", "1", "--stop-on-failure")
    assert given_up.returncode == 7 and "processes ended" in given_up.stderr, given_up.stderr
    assert [state(pid) for pid in pids.values() if state(pid) not in ("", "Z")] == []


def test_slow_weights_are_never_a_hang(hsops: Cli, lab: Lab, tmp_path: Path) -> None:
    """Weights trickle in for half a minute: every verdict on the way is that it moves, and loading is seen.

    A launch that allows far less silence than that waits for it.
    """
    labs.up(lab.layout.home, fault="slow-load")
    slow = hsops.changed(tmp_path / "slow.yaml", env={"HSOPS_LAB_SLOW_LOAD_S": "30"})
    launch = slow.start("launch", "--wait-healthy", "--stall-after", "10")
    assert launch.stderr
    next(line for line in launch.stderr if "started" in line)

    seen = [look(slow)["class"]]
    log = Path(run_of(slow)["log"])
    wait_for(lambda: "Load weight begin" in log.read_text(errors="replace"), "the load begins", patience=300)
    until = time.monotonic() + 300
    while not seen[-1].startswith("healthy"):  # on a busy machine a look takes half as long as the load
        seen.append(look(slow)["class"])
        assert time.monotonic() < until, seen
    said, why = launch.communicate(timeout=120)

    assert set(seen) <= MOVING, seen
    assert "loading" in seen, seen
    assert launch.returncode == 0, why
    assert "healthy after" in said


def test_a_crash_is_read_from_its_log(hsops: Cli, lab: Lab) -> None:
    """An exception that all ranks raise in the first forward pass is shown with its place; no rank is blamed."""
    labs.up(lab.layout.home, fault="v1-patch")
    hsops("launch", "--wait-healthy")

    verdict = look(hsops)

    assert verdict["class"] == "aux-hidden-not-captured", verdict
    assert "too many values to unpack" in verdict["summary"]
    assert "deepseek_v2.py" in cited(verdict, "frame")


@pytest.mark.parametrize(
    "fields,name",
    [({"args": {"mm-process-config": "oops"}}, "bad-flag"), ({"model": "EMPTY"}, "model-path-missing")],
)
def test_a_wrong_inventory_is_named(hsops: Cli, tmp_path: Path, fields: dict[str, Any], name: str) -> None:
    """A value that only SGLang itself can refuse, and a folder that holds no model."""
    (tmp_path / "empty").mkdir()
    given = {key: str(tmp_path / "empty") if value == "EMPTY" else value for key, value in fields.items()}
    wrong = hsops.changed(tmp_path / "wrong.yaml", **given)
    wrong("launch", "--wait-healthy")

    verdict = look(wrong)

    assert verdict["class"] == name, verdict
    assert look(wrong, "--log", run_of(hsops)["log"])["class"] == name
