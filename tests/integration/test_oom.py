"""A rank that the kernel's OOM killer ended, in a control group with too little memory, is told as that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hsops.agent import oom, probe_host, procs
from hsops.agent.probe_tools import CouldNot
from hsops.core.runs import Run
from hsops.remote import runs
from hsops.remote.agent import Agent
from tests.memory_cgroup import memory_cgroup
from tests.running import VICTIMS, start

PATIENCE_S = 60.0


@pytest.fixture
def narrow() -> Iterator[Path]:
    """The control group."""
    with memory_cgroup() as folder:
        yield folder


def until(agent: Agent, wanted: Callable[[Run], object]) -> Run:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        (run,) = runs.list_runs(agent)
        if wanted(run):
            return run
        assert time.monotonic() < deadline, run
        time.sleep(0.05)


def test_a_rank_that_the_oom_killer_ended(narrow: Path, agent: Agent) -> None:
    """Its exit says so; a rank that somebody killed by the same signal a moment later was not the OOM killer's."""
    start(agent, "rank=0", f"greedy={narrow}", "sleep")

    killed = until(agent, lambda run: run.ranks.get("TP1"))
    os.kill(killed.rank_pids["TP0"], signal.SIGKILL)
    both = until(agent, lambda run: run.ranks["TP0"])

    assert str(both.ranks["TP1"]) == "killed by SIGKILL (out of memory)"
    assert str(both.ranks["TP0"]) == "killed by SIGKILL"


def test_the_counter_tells_where_the_kernels_log_may_not_be_read(narrow: Path) -> None:
    """As in most containers, and for users who are not root."""
    watch = oom.OomWatch()
    if watch._kmsg >= 0:
        os.close(watch._kmsg)
    watch._kmsg = -1
    server = subprocess.Popen([sys.executable, str(VICTIMS / "tree.py"), f"greedy={narrow}", "sleep"])
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (dead := [p for p in procs.tree(server.pid) if p.zombie and p.status == signal.SIGKILL]):
            assert time.monotonic() < deadline
            time.sleep(0.02)

        assert watch.killed(dead[0].pid)
        assert not watch.killed(dead[0].pid)  # one kill is told once
    finally:
        server.kill()
        server.wait()


def test_a_counter_that_rose_for_another_process_long_ago(narrow: Path) -> None:
    """A neighbour of the same control group was the OOM killer's; who is killed a minute later was somebody's."""
    now = [0.0]
    watch = oom.OomWatch(lambda: now[0])
    if watch._kmsg >= 0:
        os.close(watch._kmsg)
    watch._kmsg = -1
    greedy = f"open({str(narrow / 'cgroup.procs')!r}, 'w').write('0'); print(len(bytearray(200 << 20)))"
    neighbour = subprocess.Popen([sys.executable, "-c", greedy])
    assert neighbour.wait() == -signal.SIGKILL

    watch.look()
    now[0] = 61.0

    assert not watch.killed(os.getpid())


def test_oom_kills_before_the_run_are_others(narrow: Path) -> None:
    """The kernel's log keeps them for days."""
    began = time.time()
    greedy = f"open({str(narrow / 'cgroup.procs')!r}, 'w').write('0'); print(len(bytearray(200 << 20)))"
    dead = subprocess.Popen([sys.executable, "-c", greedy])
    assert dead.wait() == -signal.SIGKILL
    try:
        during = probe_host.kernel_log(since=began - 1)
    except CouldNot:
        pytest.skip("the kernel's log may not be read here")

    later = probe_host.kernel_log(since=time.time() + 1)

    assert [line for line in during["oom"] if f"Killed process {dead.pid} " in line]
    assert not [line for line in later["oom"] if f"Killed process {dead.pid} " in line]
