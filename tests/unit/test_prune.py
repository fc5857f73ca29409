"""What a launch removes of earlier ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import leases, procs
from hsops.agent.__main__ import note_use
from hsops.agent.prune import KEPT_RUNS, UNUSED_S, prune


def a_run(state: Path, n: int, server: str = "tiny", where: str = "", **told: Any) -> Path:
    """A run of here that has ended, unless told otherwise; a higher n is newer."""
    folder = state / f"runs/1130-1000{n:02}-0000"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(
        json.dumps({"server": server, "created": 1000.0 + n, "where": where or leases.where()})
    )
    (folder / "state.json").write_text(json.dumps({"phase": "exited", "boot": procs.boot_id(), **told}))
    return folder


def test_the_newest_ended_runs_of_each_server_stay(tmp_path: Path) -> None:
    """Those of another server do not count, and neither does the one that runs, however old it is."""
    me = procs.look(os.getpid())
    assert me
    running = a_run(tmp_path, 0, phase="running", pid=me.pid, start=me.start, supervisor=[me.pid, me.start])
    other = a_run(tmp_path, 1, "other")
    runs = [a_run(tmp_path, n) for n in range(2, KEPT_RUNS + 5)]
    (tmp_path / "runs/.gone-1130-090000-0000").mkdir()  # a kill came in between

    prune(str(tmp_path))

    left = {path.name for path in (tmp_path / "runs").iterdir()}
    assert left == {running.name, other.name, *(run.name for run in runs[-KEPT_RUNS:])}


def test_a_run_with_a_process_left_stays(tmp_path: Path) -> None:
    """Its directory is how that process is known."""
    old, runs = a_run(tmp_path, 0), [a_run(tmp_path, n) for n in range(1, KEPT_RUNS + 1)]
    with (old / "server.log").open("wb") as log:
        orphan = subprocess.Popen(["/bin/sleep", "600"], stdout=log)

    prune(str(tmp_path))
    kept = old.exists()
    orphan.kill()
    orphan.wait()
    prune(str(tmp_path))

    assert kept and not old.exists() and all(run.exists() for run in runs)


@pytest.mark.parametrize("where", ["box2 another-boot pid:[4026531836]", "box another-container pid:[4026532001]"])
def test_a_run_of_another_machine_or_container_stays_while_it_may_be_live(tmp_path: Path, where: str) -> None:
    """The state folder lies on NFS, or is mounted into containers: pids of there say nothing here."""
    live = {"phase": "running", "pid": 4194303, "start": 1, "supervisor": [4194302, 1]}
    a_week = time.time() - UNUSED_S
    elsewhere = [
        a_run(tmp_path, 0, where=where, **live),
        a_run(tmp_path, 1, where=where, **live, boot="another-boot"),
        a_run(tmp_path, 2, where=where),
        a_run(tmp_path, 3, where=where),
    ]
    for folder in (*elsewhere[:2], elsewhere[3]):
        os.utime(folder, (a_week - 100, a_week - 100))
    for n in range(4, KEPT_RUNS + 4):
        a_run(tmp_path, n)

    prune(str(tmp_path))

    assert [run.exists() for run in elsewhere] == [True, True, True, False]  # the last: it ended a week ago


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    """Three agents that were not used for long, with byte code."""
    folder = tmp_path / "agent"
    folder.mkdir()
    long_ago = time.time() - UNUSED_S - 100
    for name in ("aa.pyz", "aa.pyz.cpython-311.code", "bb.pyz", "cc.pyz"):
        (folder / name).touch()
        os.utime(folder / name, (long_ago, long_ago))
    return folder


def test_agents_that_nobody_uses_go(agents: Path) -> None:
    """One that a process runs stays, and one that was used lately."""
    words = ["python", "-c", "import sys; print(flush=True); sys.stdin.read()", str(agents / "bb.pyz")]
    runs = subprocess.Popen(words, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert runs.stdout and runs.stdout.readline() == b"\n"
    note_use(str(agents / "cc.pyz"))

    prune(str(agents.parent))
    left = {path.name for path in agents.iterdir()}
    runs.kill()
    runs.communicate()

    assert left == {"bb.pyz", "cc.pyz"}
