"""A real SGLang started and stopped over and over beside its double: ``make cycles``."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import procs
from hsops.lab import Lab
from tests.e2e.cli import Cli
from tests.hosts import closed_port
from tests.supervision.results import MEASURED, record

CYCLES = int(os.environ.get("HSOPS_CYCLES", "100"))
BUDGET_S = float(os.environ.get("HSOPS_CYCLES_S", "inf"))  # no cycle is begun after so many seconds
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120 + 300 * CYCLES)]

DECOY = """\
import subprocess, sys, time
for name in ("sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer"):
    subprocess.Popen([name, "60000"], executable="/bin/sleep")
print("up", flush=True)
time.sleep(60000)
"""


def family(decoy: subprocess.Popen[str]) -> list[int]:
    """The decoy's processes that live."""
    return [p.pid for p in (procs.look(decoy.pid), *procs.tree(decoy.pid)) if p and not p.zombie]


Decoys = dict[int, "subprocess.Popen[str]"]  # by TP


@pytest.fixture
def decoys() -> Iterator[Decoys]:
    """Holds the decoys, once ``double`` has made them; they are ended."""
    held: Decoys = {}
    yield held
    for one in held.values():
        for pid in family(one):
            os.kill(pid, signal.SIGKILL)
        one.communicate()


def double(argv: list[str], folder: Path) -> subprocess.Popen[str]:
    """The same interpreter with the same words, but with another ``sglang.launch_server`` to run."""
    (folder / "sglang").mkdir(parents=True)
    (folder / "sglang/__init__.py").touch()
    (folder / "sglang/launch_server.py").write_text(DECOY)
    made = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "PYTHONPATH": str(folder)}
    )
    assert made.stdout and made.stdout.readline() == "up\n"
    return made


def test_nothing_is_left_of_a_real_server(hsops: Cli, lab: Lab, tmp_path: Path, decoys: Decoys) -> None:
    """Odd ones of two ranks, even ones of one. RESUME=1 goes on with the number after the last on the page."""
    done = len(MEASURED.read().get("cycles", {})) if os.environ.get("RESUME") else 0
    until = time.monotonic() + BUDGET_S
    with closed_port() as port:
        pass
    two = hsops.changed(tmp_path / "two.yaml", port=port)
    one = two.changed(tmp_path / "one.yaml", tp=1, env={"SGLANG_CPU_OMP_THREADS_BIND": "0"})
    before = set(os.listdir("/dev/shm"))
    for number in range(done + 1, CYCLES + 1):
        if time.monotonic() > until:
            break
        seen = cycle(two if number % 2 else one, 2 if number % 2 else 1, decoys, before, port)
        record("cycles", str(number), seen)
        print(number, seen, flush=True)
        assert not seen["left"] and seen["decoy"], seen


def cycle(cli: Cli, tp: int, decoys: Decoys, before: set[str], port: int) -> dict[str, Any]:
    """One."""
    began = time.monotonic()
    launched = cli("launch", "--wait-healthy")
    assert launched.returncode == 0, launched.stderr
    healthy = time.monotonic()
    (run,) = cli.json("status")["data"]["runs"]
    if tp not in decoys:
        decoys[tp] = double(run["argv"], cli.inventory.parent / f"decoy-{tp}")
    there = decoys[tp]
    assert procs.title(there.pid) == procs.title(run["pid"]) and len(family(there)) == 4
    asked = time.monotonic()
    stopped = cli.json("stop")
    took = time.monotonic() - asked
    left = [f"process {pid}" for pid in procs.Snapshot().shows(run["id"], run["log"])]
    left += [f"process {pid}" for pid in [run["pid"], *run["rank_pids"].values()] if procs.look(pid)]
    left += [f"/dev/shm/{name}" for name in set(os.listdir("/dev/shm")) - before if ours(name, run)]
    with socket.socket() as probe:
        left += [f"port {port}"] if probe.connect_ex(("127.0.0.1", port)) == 0 else []
    left += ["the lock"] if cli.json("status")["data"].get("lock") else []
    left += [] if stopped["ok"] and stopped["data"]["left"] == 0 else ["stop said so"]
    ended = stopped["data"]["stopped"][0]["ended"]
    return {
        "tp": tp,
        "ended": len(ended),
        "killed": sum(one["by"] == "KILL" for one in ended),
        "launch_s": round(healthy - began, 1),
        "stop_s": round(took, 1),
        "left": ", ".join(left),
        "decoy": all(len(family(one)) == 4 for one in decoys.values()),
    }


def ours(name: str, run: dict[str, Any]) -> bool:
    """A segment in /dev/shm that came since the run was started and that nobody has now: others' servers may run."""
    path = f"/dev/shm/{name}"
    try:
        found = os.lstat(path)
    except OSError:
        return False
    if not stat.S_ISREG(found.st_mode):  # a folder there is no segment
        return False
    held = {file for pid in procs.census() for file in procs.inodes(pid, "/dev/shm/")}
    return found.st_ctime >= run["started"] and (found.st_dev, found.st_ino) not in held
