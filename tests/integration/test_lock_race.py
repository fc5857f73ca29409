"""Two clients deploy at once over SSH: one waits or is told who holds the lock, and never are both inside.

``HSOPS_LOCK_ROUNDS=50`` for more rounds (``make lock-race``).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server
from tests.hosts import inventory_text
from tests.practice_host import ENV, PracticeHost, practice_host
from tests.witness import entered, place_witness, violations

ROUNDS = int(os.environ.get("HSOPS_LOCK_ROUNDS", "3"))


@pytest.mark.timeout(60 + 30 * ROUNDS)
def test_two_deploys_at_once(server: Server, tmp_path: Path) -> None:
    """The witness is in the host's own Python: a file that only one change at a time can make."""
    host = practice_host(tmp_path)
    place_witness(host, seconds=0.1)
    ends: dict[str, int] = {}

    for i in range(ROUNDS):
        clients = [_deploy(host, server, boundary, wait=i % 2 * 20) for boundary in (2 * i, 2 * i + 1)]
        told = [_told(*client.communicate(timeout=100)) for client in clients]

        assert "done" in told, told
        assert all(one in ("done", "locked", "changed-meanwhile") for one in told), told
        assert i % 2 == 0 or "locked" not in told, told
        config = json.loads((host.site / "hsops_hs_dump/config.json").read_text())
        assert config["boundaries"] in [[2 * i + which] for which in (0, 1) if told[which] == "done"]
        for one in told:
            ends[one] = ends.get(one, 0) + 1

    print(f"{ROUNDS} rounds of two deploys at once: {ends}, {entered(host)} changes, inside together: none")
    assert not violations(host)
    assert entered(host) == ends["done"]


def _deploy(host: PracticeHost, server: Server, boundary: int, *, wait: int) -> subprocess.Popen[str]:
    spec = server.spec.model_copy(update={"python": host.python, "state_dir": str(host.state), "name": "practice"})
    path = host.folder / f"{boundary}.yaml"
    more = "servers: {tiny: {host: practice, model: hub/none, patches: [hs-dump]}}\ndefault: tiny\n"
    path.write_text(f"{inventory_text(spec)}{more}patches: {{hs-dump: {{boundaries: [{boundary}]}}}}\n")
    words = host.command("-i", str(path), "deploy", "--yes", "--json", "--lock-wait", str(wait))
    pipe = subprocess.PIPE
    return subprocess.Popen(
        words, cwd=host.folder, env=ENV, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    )


def _told(out: str, err: str) -> str:
    envelope: dict[str, Any] = json.loads(out.splitlines()[-1])
    if envelope["ok"]:
        return "done"
    (error,) = envelope["errors"]
    if error["type"] == "LockedError":
        assert "holds this host's lock for 'hsops deploy'" in error["message"], error
        return "locked"
    return str(error.get("code", error))
