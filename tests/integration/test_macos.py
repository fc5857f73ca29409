"""The client without what only Linux has, against a real sshd on a Linux host: what runs on a Mac."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fetching import ROOT, Place, place
from tests.hosts import Server

MIB = 1 << 20


@pytest.fixture(params=["ssh", "direct"])
def here(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Place:
    """A host with forty dumps, which are many enough to be made durable at once, and the channel."""
    return place(server.spec.model_copy(update={"channel": request.param}), tmp_path, *[5000] * 40, 3 * MIB)


def hsops(inventory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """hsops as on a Mac."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'tests/macos'}:{ROOT}"}
    return subprocess.run(
        [sys.executable, "-m", "hsops", "-i", str(inventory), *words],
        env=env, cwd=inventory.parent, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=100, check=False,
    )  # fmt: skip


def test_this_is_no_linux(tmp_path: Path) -> None:
    """Or the others would prove nothing."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'tests/macos'}:{ROOT}"}
    asked = (
        "import os, sys; print(sys.platform, hasattr(os, 'memfd_create'), os.path.exists('/proc')); open('/proc/stat')"
    )

    done = subprocess.run(
        [sys.executable, "-c", asked], env=env, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stdout.startswith("darwin False")
    assert "FileNotFoundError" in done.stderr


def test_dumps_are_fetched_checked_and_freed(here: Place) -> None:
    """By either channel, with the host's copies removed once these are durable."""
    done = hsops(here.inventory, "fetch", "--to", str(here.to), "--evict", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(done.stdout.splitlines()[-1])["data"]
    assert (data["fetched"], data["evicted"]) == (41, 41), data
    assert not list(here.source.glob("*.safetensors"))
    assert hsops(here.inventory, "verify", str(here.to)).returncode == 0


@pytest.mark.parametrize(
    "words", [("doctor",), ("status",), ("logs",), ("audit",), ("deploy", "--status"), ("explain",)]
)
def test_what_only_looks_is_as_elsewhere(server: Server, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Neither a traceback nor a bug of hsops'."""
    inventory = place(server.spec, tmp_path).inventory

    done = hsops(inventory, *words)

    assert "Traceback" not in done.stderr and "a bug in hsops" not in done.stderr, done.stderr
    assert done.returncode in (0, 1, 2), done.stderr


def test_the_lab_and_a_local_host_say_that_they_are_linux(server: Server, tmp_path: Path) -> None:
    """With what to do instead; nothing is tried."""
    inventory = place(server.spec, tmp_path).inventory
    inventory.write_text("hosts: { here: { ssh: local, python: /usr/bin/python3 } }\n")

    lab, local = hsops(inventory, "lab", "up", "--home", str(tmp_path / "lab")), hsops(inventory, "doctor")

    assert (lab.returncode, local.returncode) == (1, 2), lab.stderr + local.stderr
    assert "the lab runs on Linux only" in lab.stderr and not (tmp_path / "lab").exists()
    assert "hosts.here is this machine (ssh: local)" in local.stderr
