"""``hsops status`` on several hosts: side by side, and a host that cannot be asked is a row with its reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import Server, run_dir
from tests.running import agent_here, start


@pytest.fixture
def folder(tmp_path: Path, server: Server) -> Path:
    """Two hosts that answer, one that refuses, a server on the first."""
    config = server.folder / "ssh_config"
    lines = ["hosts:"]
    for name in "ab":
        state = tmp_path / name
        way = f"ssh: {server.spec.ssh}, ssh_config: {config}"
        lines.append(f"  {name}: {{ {way}, python: {sys.executable}, state_dir: {state} }}")
    lines += ["  down: { ssh: 'nobody@127.0.0.1:1', python: /p }", "  gone: { ssh: 'nobody@127.0.0.1:2', python: /p }"]
    lines += ["groups: { all: [a, down, b], none: [down, gone] }"]
    (tmp_path / "inventory.yaml").write_text("\n".join(lines) + "\n")
    return tmp_path


def status(folder: Path, *words: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, the text for people, the envelope."""
    argv = [sys.executable, "-m", "hsops", "-i", str(folder / "inventory.yaml"), *words, "status"]
    done = [
        subprocess.run(
            [*argv, *more],
            env=run_dir(),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=100,
            check=False,
        )
        for more in ([], ["--json"])
    ]
    assert done[0].returncode == done[1].returncode and "Traceback" not in done[0].stderr
    return done[0].returncode, done[0].stdout, json.loads(done[1].stdout.splitlines()[-1])


def test_one_that_is_down_hides_no_other(folder: Path) -> None:
    """Exit 3: the others' runs are shown, and so is why this one cannot be asked."""
    with agent_here(folder / "a") as agent:
        run = start(agent, "sleep")
        code, text, envelope = status(folder, "--group", "all")

    assert code == 3 and not envelope["ok"]
    assert run.id in text and "down       CANNOT BE ASKED" in text
    hosts = envelope["data"]["hosts"]
    assert {name: one["reachable"] for name, one in hosts.items()} == {"a": True, "b": True, "down": False}
    assert hosts["down"]["error"]["type"] == "UnreachableError" and hosts["down"]["error"]["message"]
    assert [(one["id"], one["host"], one["level"]) for one in envelope["data"]["runs"]] == [(run.id, "a", "refused")]
    assert [one["host"] for one in envelope["errors"]] == ["down"]


def test_none_and_the_only_one(folder: Path) -> None:
    """Exit 1 when none of several answers; the only host that was asked for gives its error's own code."""
    code, text, envelope = status(folder, "--group", "none")
    only, _, _ = status(folder, "--host", "down")

    assert code == 1 and text.count("CANNOT BE ASKED") == 2 and len(envelope["errors"]) == 2
    assert only == 5
