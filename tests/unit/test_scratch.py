"""Folders of a client that was killed go with the next one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hsops.remote import scratch
from tests.hosts import run_dir

HOLDS = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from hsops.remote.scratch import scratch
with scratch() as folder:
    (folder / "sample").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_killed_clients_folder_goes_and_a_living_ones_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose it is tells a lock, which no later process with the same pid has."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_YOUNG_S", 0.0)
    argv = [sys.executable, "-c", HOLDS, str(tmp_path)]
    clients = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=run_dir())
               for _ in range(2)]  # fmt: skip
    killed, alive = (Path((client.stdout.readline() if client.stdout else "").strip()) for client in clients)
    clients[0].kill()
    clients[0].communicate()

    with scratch.scratch() as ours:
        there = set(tmp_path.iterdir())
    clients[1].communicate("")

    assert there == {alive, ours} and not killed.exists()
    assert list(tmp_path.iterdir()) == []
