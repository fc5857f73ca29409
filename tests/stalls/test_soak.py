"""Slow launches of a real SGLang are never called stuck; hanging ones always are, within the bound."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hsops import lab as labs
from hsops.lab import Lab
from tests.e2e.cli import Cli
from tests.stalls.cases import SLOW, SLOW_S, STUCK, Case
from tests.stalls.results import record

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

LOOK_S = 45  # for the look by hsops diagnose, on a machine whose cores the hung ranks burn
STEP_S = 45  # between the last milestone and the place where it hangs: imports, a forward pass


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab with SGLang 0.5.9; HSOPS_STALLS_HOME keeps it, and its good run, for a soak in pieces."""
    kept = os.environ.get("HSOPS_STALLS_HOME")
    home = Path(kept) if kept else tmp_path_factory.mktemp("labs") / "lab"
    yield labs.up(home, sglang="0.5.9")
    labs.down(home, purge=not kept)


@pytest.fixture(scope="session")
def hsops(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """hsops on the lab. Every launch has one environment, so that one baseline vouches for all."""
    path = tmp_path_factory.mktemp("inventory") / "inventory.yaml"
    return Cli(lab.inventory).changed(path, patches=[], env={"HSOPS_LAB_SLOW_LOAD_S": str(SLOW_S)})


@pytest.fixture(scope="session")
def good(hsops: Cli, lab: Lab) -> Path:
    """The baseline of one undisturbed launch."""
    path = lab.layout.home / "good.json"
    if not path.exists():
        assert hsops("launch", "--wait-healthy").returncode == 0
        assert hsops("stop").returncode == 0
        shutil.copy(_baseline(lab), path)
    return path


@pytest.fixture(autouse=True)
def clean(hsops: Cli, lab: Lab, good: Path) -> Iterator[None]:
    """Every launch is held against the same good run, and leaves no server behind."""
    shutil.copy(good, _baseline(lab))
    yield
    assert hsops("stop").returncode == 0
    labs.up(lab.layout.home)


def _baseline(lab: Lab) -> Path:
    return lab.layout.home / "state/baselines/tiny.json"


@pytest.mark.parametrize("case", SLOW, ids=lambda case: case.id)
def test_slow_is_never_called_stuck(hsops: Cli, lab: Lab, case: Case) -> None:
    """It becomes healthy, and nobody had to look into it on the way."""
    labs.up(lab.layout.home, fault=case.fault)

    seen = followed(hsops, case, "launch", "--wait-healthy")

    record(case, seen)
    print(f"{case.id}: {seen}")
    assert (seen["exit"], seen["stalls"]) == (0, 0), seen
    assert seen["limit_s"] < SLOW_S, "the good run was too slow: this launch proves nothing"


@pytest.mark.parametrize("case", STUCK, ids=lambda case: case.id)
def test_stuck_is_told_within_the_bound(hsops: Cli, lab: Lab, case: Case) -> None:
    """Exit 7 with a verdict; the server stays, except where the launch was told to stop it, which it proves."""
    labs.up(lab.layout.home, fault=case.fault)
    stops = case.fault == "lost-collective@http"

    seen = followed(hsops, case, "launch", "--wait-healthy", *(["--stop-on-failure"] if stops else []))

    seen["left"] = hsops.json("status")["data"]["runs"][0]["phase"] == "running"
    record(case, seen)
    print(f"{case.id}: {seen}")
    assert (seen["exit"], seen["stalls"]) == (7, 1), seen
    assert seen["limit_s"] <= seen["silent_s"] < seen["limit_s"] + 5
    assert seen["told_s"] < seen["limit_s"] + LOOK_S + STEP_S
    assert seen["left"] != stops


def followed(hsops: Cli, case: Case, *words: str) -> dict[str, Any]:
    """A launch to its end, and what it said on the way: of waits, those in the stage that the case strikes."""
    client = hsops.start(*words, "--json")
    began = last = time.monotonic()
    stalls, quiet, limit, said, event = 0, 0.0, 0.0, "", dict[str, Any]()
    assert client.stdout
    for line in client.stdout:
        event = json.loads(line)
        kind = event.get("event")
        last = time.monotonic() if kind == "milestone-reached" else last
        stalls += kind == "note" and event["message"].startswith("stalled ")
        if kind == "waiting" and event["stage"] == case.stage:
            quiet, limit = max(quiet, event["silent_s"]), max(limit, event["limit_s"])
            said = event["doing"][0] if event["doing"] else said
    now = time.monotonic()
    client.communicate()
    verdict, stalled = event["data"].get("verdict") or {}, event["data"].get("stalled") or {}
    return {
        "exit": client.returncode,
        "stalls": stalls,
        "quiet_s": round(quiet, 1),
        "limit_s": round(stalled.get("limit_s", limit), 1),
        "silent_s": round(stalled.get("silent_s", 0.0), 1),
        "took_s": round(now - began, 1),
        "told_s": round(now - last, 1),
        "said": said,
        "verdict": verdict.get("class", ""),
        "rank": "" if verdict.get("rank") is None else f"TP{verdict['rank']}",
        "left": None,
        "load": round(os.getloadavg()[0], 1),
    }
