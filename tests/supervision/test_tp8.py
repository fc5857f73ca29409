"""Eight ranks on this machine's CPU: ``make tp8``."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hsops.agent import procs
from tests.e2e.cli import Cli
from tests.e2e.practice import practice
from tests.supervision.results import record

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
RANKS = {f"TP{n}" for n in range(8)}


def test_eight_ranks(tmp_path: Path) -> None:
    """They start, each is seen through the milestones that it reaches, each captures, and stop leaves nothing."""
    with practice(tmp_path, sglang="0.5.9", tp=8) as lab:
        lab.do("deploy", "--yes")
        hsops = Cli(lab.inventory)
        client = hsops.start("launch", "--wait-healthy", "--json")
        assert client.stdout and client.stderr
        told = [json.loads(line) for line in client.stdout]
        assert client.wait() == 0, told[-1]["errors"]
        (run,) = hsops.json("status")["data"]["runs"]
        began = time.monotonic()
        stopped = hsops.json("stop", timeout=600)
        took = time.monotonic() - began

    (one,) = stopped["data"]["stopped"]
    by_milestone: dict[str, set[str]] = {}
    for event in told:
        if event.get("event") == "milestone-reached":
            by_milestone.setdefault(event["milestone"], set()).add(event["rank"])
    proof = one["proof"]
    record(
        "tp8",
        "0.5.9",
        {
            "healthy_s": told[-1]["data"]["seconds"],
            "ranks": len(RANKS & by_milestone["weights"]),
            "stop_s": round(took, 1),
            "processes": len(one["ended"]),
            "segments_left": len(proof["segments_left"]),
        },
    )
    assert run["health"] == "healthy" and run["ranks"] == dict.fromkeys(sorted(RANKS))
    assert {said["rank"] for said in run["hellos"] if said["ok"]} == set(range(8))
    assert all(by_milestone[name] == RANKS for name in ("distributed-begin", "weights-begin", "weights", "memory-pool"))
    assert stopped["ok"] and stopped["data"]["left"] == 0 and len(one["ended"]) >= 10
    assert proof["port_holder"] is None and proof["segments_left"] == []
    assert not procs.Snapshot().shows(run["id"], run["log"])
