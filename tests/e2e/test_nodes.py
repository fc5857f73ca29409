"""A real SGLang at TP 2 over two hosts, each with an sshd, a state and an SGLang of its own."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hsops import lab as labs
from hsops.agent import procs
from hsops.agent.probe_tools import state
from hsops.lab import Lab
from tests.e2e.cli import Cli
from tests.running import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


@pytest.fixture
def hsops(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """hsops with the server ``tiny`` over the lab and a second one, both with hs-dump while the test runs."""
    second = labs.up(tmp_path_factory.mktemp("second") / "lab", sglang="0.5.9")
    whole, other = (yaml.safe_load(one.inventory.read_text()) for one in (lab, second))
    whole["hosts"] = {"a": whole["hosts"]["lab"], "b": other["hosts"]["lab"]}
    tiny = whole["servers"]["tiny"]
    del tiny["host"]
    tiny |= {"nodes": ["a", "b"], "env": {**tiny["env"], "GLOO_SOCKET_IFNAME": "lo"}}
    path = second.layout.home / "two.yaml"
    path.write_text(yaml.safe_dump(whole))
    cli = Cli(path)
    done = cli("deploy", "--yes")
    assert done.returncode == 0, done.stderr
    yield cli
    assert cli("stop", "--grace", "1").returncode == 0
    assert cli("deploy", "--revert", "--yes").returncode == 0
    labs.down(second.layout.home, purge=True)


def test_a_server_over_two_hosts(hsops: Cli, tmp_path: Path) -> None:
    """Healthy as one run; its dumps are whole; a rank that stands still is named with its host; nothing is left."""
    launched = hsops.json("launch", "--wait-healthy")
    assert launched["ok"], launched["errors"]
    run = _healthy(hsops, launched["data"]["run"]["id"])
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"id": f"p{i}", "input_ids": [(7 * i + k) % 200 for k in range(5 + i)]} for i in range(6)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    extracted = hsops("extract", str(prompts))
    fetched = hsops("fetch", "--to", str(tmp_path / "hs"))
    verified = hsops("verify", str(tmp_path / "hs"), "--prompts", str(prompts))
    os.kill(run["rank_pids"]["TP1"], signal.SIGSTOP)
    wait_for(lambda: state(run["rank_pids"]["TP1"]) == "T", "the rank stands still")
    verdict = hsops.json("diagnose")["data"]["verdict"]
    stopped = hsops.json("stop", "--grace", "2")

    assert (run["phase"], run["health"], run["ranks"]) == ("running", "healthy", {"TP0": None, "TP1": None})
    assert [(part["host"], part["ranks"]) for part in run["parts"]] == [("a", ["TP0"]), ("b", ["TP1"])]
    assert [said["ok"] for said in run["hellos"]] == [True, True]
    assert extracted.returncode == 0, extracted.stderr
    assert (fetched.returncode, verified.returncode) == (0, 0), fetched.stderr + verified.stderr
    assert (verdict["class"], verdict["host"], verdict["rank"]) == ("rank-stopped", "b", 1)
    assert stopped["ok"] and {one["host"] for one in stopped["data"]["stopped"]} == {"a", "b"}
    shown = procs.Snapshot().runs()
    assert run["id"] not in shown.values()


def _healthy(hsops: Cli, run_id: str) -> dict[str, Any]:
    """The run, once a look has its answer; other tests have left records of other servers on the lab."""
    until = time.monotonic() + 120
    while True:
        (run,) = (run for run in hsops.json("status")["data"]["runs"] if run["id"] == run_id)
        if run["health"] == "healthy":
            return dict(run)
        assert time.monotonic() < until, run
