"""A server is started and stopped over and over: nothing of it is left, and its double outside the run lives on.

HSOPS_CYCLES says how often (``make cycles``: a hundred times).
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hsops.agent import procs
from hsops.agent.prune import KEPT_RUNS
from hsops.core.runs import Run
from hsops.remote import runs
from hsops.remote.agent import Agent
from hsops.remote.log import read_log
from tests.running import VICTIMS, marked, start

CYCLES = int(os.environ.get("HSOPS_CYCLES", "2"))
HELD = re.compile(r"^(\S+) port (\d+) segment (\S+)$", re.MULTILINE)
pytestmark = pytest.mark.timeout(120 + 30 * CYCLES)


@pytest.fixture
def double(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The same command line, titles, ports and segments, started by somebody else."""
    log = tmp_path / "double.log"
    with log.open("ab") as out:
        words = [sys.executable, str(VICTIMS / "standin.py"), "0", "2"]
        child = subprocess.Popen(words, stdout=out, start_new_session=True)
    try:
        until_said(log, child)
        yield child
    finally:
        for proc in procs.tree(child.pid):
            procs.send(proc.pid, proc.start, signal.SIGKILL)
        child.kill()
        child.wait()
        for _, _, segment in HELD.findall(log.read_text()):
            Path("/dev/shm", segment).unlink(missing_ok=True)  # its tracker is dead too


def until_said(log: Path, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while b"ready\n" not in log.read_bytes():
        assert child.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def test_nothing_is_left_of_a_stopped_server(agent: Agent, double: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """No process, no port, no segment, no lock, and no more run directories than are kept."""
    theirs = HELD.findall((tmp_path / "double.log").read_text())
    assert len(theirs) == 3

    for cycle in range(CYCLES):
        run = start(agent, "{port}", "2", victim="standin.py")
        held = HELD.findall(said_ready(agent, run))
        assert {name for name, _, _ in held} == {"server", "TP0", "TP1"}

        stopped = runs.stop_run(agent, run.id, grace=0.0)

        assert stopped.left == () and stopped.run.phase == "stopped", cycle
        assert nothing_left(run, held) == [], cycle
        assert agent.call("lock-show")["holder"] is None, cycle

    kept = [path.name for path in Path(run.directory).parent.iterdir() if not path.name.startswith(".start")]
    assert len(kept) == min(CYCLES, KEPT_RUNS + 1) and not any(name.startswith(".") for name in kept)
    assert double.poll() is None
    for _, port, segment in theirs:
        assert Path("/dev/shm", segment).exists()
        socket.create_connection(("127.0.0.1", int(port)), 10).close()


def said_ready(agent: Agent, run: Run) -> str:
    """The log, once every rank holds what it will."""
    log = b""
    for piece in read_log(agent, run.id, follow=True):
        log += piece
        if b"ready\n" in log:
            return log.decode()
    raise AssertionError(log)


def nothing_left(run: Run, held: list[tuple[str, str, str]]) -> list[str]:
    """What is, in words."""
    left = [f"process {pid}" for pid in marked(run.id)]
    for name, port, segment in held:
        if Path("/dev/shm", segment).exists():
            left.append(f"{segment} of {name}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", int(port))) == 0:
                left.append(f"port {port} of {name}")
    return left
