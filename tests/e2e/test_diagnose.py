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

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

MOVING = {"starting", "loading", "healthy", "healthy-loaded"}


@pytest.fixture(scope="module")
def hsops(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """hsops on the lab; its server has no patch."""
    return Cli(lab.inventory).changed(tmp_path_factory.mktemp("inventory") / "inventory.yaml", patches=[])


@pytest.fixture(autouse=True)
def clean(hsops: Cli, lab: Lab) -> Iterator[None]:
    """Every test leaves no server and no fault behind."""
    yield
    assert hsops("stop").returncode == 0
    labs.up(lab.layout.home)


def look(hsops: Cli, *words: str) -> dict[str, Any]:
    """The verdict of ``hsops diagnose``."""
    verdict: dict[str, Any] = hsops.json("diagnose", *words)["data"]["verdict"]
    return verdict


def rank_pids(hsops: Cli) -> dict[str, int]:
    (run,) = hsops.json("status")["data"]["runs"]
    pids: dict[str, int] = run["rank_pids"]
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
        assert verdict["class"] in MOVING and time.monotonic() < until, verdict
    return verdict


def until_ended(hsops: Cli) -> None:
    """A killed rank takes the server along within seconds; the supervisor has recorded it when status says so."""
    until = time.monotonic() + 120
    while hsops.json("status")["data"]["runs"][0]["phase"] == "running":
        assert time.monotonic() < until


@pytest.mark.parametrize("fault,port", [("busy-wait", "nobody listens"), ("busy-wait-warmup", "503")])
def test_a_busy_wait_is_named(hsops: Cli, lab: Lab, fault: str, port: str) -> None:
    """The seeds' hang, before the port opens and after: the launch ends with 7 and its name and leaves the server.

    Whoever looks again hears the same with high confidence, and no process is left traced. A launch that is told to
    stop what fails does.
    """
    labs.up(lab.layout.home, fault=fault)
    launch = hsops("launch", "--wait-healthy", "--stall-after", "11", "--json")  # twice that: past 20 s of patience
    pids = rank_pids(hsops)

    verdict = look(hsops)
    until = time.monotonic() + 90
    while verdict["class"] == "starting" and time.monotonic() < until:  # good runs on a busy machine took as long
        verdict = look(hsops)

    launched = json.loads(launch.stdout.splitlines()[-1])
    assert launch.returncode == 7 and not launched["ok"], launch.stderr
    assert launched["data"]["verdict"]["class"] == "warmup-deadlock-busy-wait", launched
    assert launched["data"]["stalled"]["silent_s"] >= 10
    assert hsops.json("status")["data"]["runs"][0]["phase"] == "running"
    assert (verdict["class"], verdict["confidence"]) == ("warmup-deadlock-busy-wait", "high"), verdict
    assert verdict["rank"] is None
    assert "2 of 2 ranks in spin" in cited(verdict, "stacks")
    assert "eventfd" in cited(verdict, "threads")
    assert "nothing is hidden" in cited(verdict, "files")
    assert port in cited(verdict, "http")
    assert [(tracer(pid), state(pid) in "RS") for pid in pids.values()] == [(0, True)] * len(pids)
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

    seen: list[str] = []
    until = time.monotonic() + 300
    while not seen or not seen[-1].startswith("healthy"):
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
    assert look(wrong, "--log", hsops.json("status")["data"]["runs"][0]["log"])["class"] == name
