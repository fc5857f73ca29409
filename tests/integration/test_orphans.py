"""Processes that nobody looks after: told by status and doctor, ended only when named. Real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import procs
from hsops.core.errors import AgentError
from hsops.core.orphans import Orphan
from hsops.remote.agent import Agent
from hsops.remote.lock import Lock
from hsops.remote.orphans import orphans, stop_orphan
from tests.gpu_tool import GpuTool
from tests.hosts import run_dir
from tests.running import VICTIMS, is_there, start, wait_for

PATIENCE_S = 60.0


@pytest.fixture
def strays() -> Iterator[Callable[..., int]]:
    """Starts a process outside every run: its pid, once it says ``up``. All of its kin is ended."""
    begun: list[subprocess.Popen[str]] = []
    seen: set[tuple[int, int]] = set()

    def stray(*words: str, **more: Any) -> int:
        argv = [sys.executable, str(VICTIMS / "tree.py"), *words, "say=up", "sleep"]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True, **more)
        begun.append(process)
        assert process.stdout and process.stdout.readline() == "up\n"
        seen.update((proc.pid, proc.start) for proc in procs.tree(process.pid))
        return process.pid

    yield stray
    for pid, began in seen:
        procs.send(pid, began, signal.SIGKILL)
    for process in begun:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()  # whoever else has its other end is gone too


def rank_of(launcher: int) -> procs.Proc:
    """A victim's only child, once it has its title."""
    wait_for(lambda: [p for p in procs.tree(launcher) if procs.role(procs.title(p.pid))], "a rank")
    (rank,) = procs.tree(launcher)
    return rank


def told(agent: Agent, pid: int) -> Orphan | None:
    """What the agent says of it among all."""
    return next((one for one in orphans(agent).found if one.pid == pid), None)


def abandoned(stray: Callable[..., int], number: int) -> procs.Proc:
    """A rank whose launcher was killed and that somebody else has adopted."""
    launcher = stray(f"rank={number}")
    rank = rank_of(launcher)
    os.kill(launcher, signal.SIGKILL)
    wait_for(lambda: (now := procs.look(rank.pid)) and now.ppid != launcher, "it is adopted")
    return rank


def hsops(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """hsops on this machine."""
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(f"hosts:\n  box: {{ ssh: local, python: {sys.executable}, state_dir: {tmp_path}/state }}\n")
    argv = [sys.executable, "-m", "hsops", "-i", str(inventory), *words]
    return subprocess.run(
        argv, env=run_dir(), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100, check=False
    )


def test_ranks_without_a_launcher(agent: Agent, strays: Callable[..., int], tmp_path: Path) -> None:
    """Told by status and doctor, ended when named and agreed to; its like, orphan or not, is not touched."""
    living = rank_of(strays("rank=7"))
    other = abandoned(strays, 7)
    orphan = abandoned(strays, 7)

    found = told(agent, orphan.pid)
    asked = hsops(tmp_path, "stop", "--orphan", str(orphan.pid))
    there_after_asking = is_there(orphan.pid)
    status = hsops(tmp_path, "status")
    doctor = hsops(tmp_path, "doctor", "--json")
    refused = hsops(tmp_path, "stop", "--orphan", str(living.pid), "--yes")
    ended = hsops(tmp_path, "stop", "--orphan", str(orphan.pid), "--yes", "--json")

    assert found and (found.kind, found.start, found.refused) == ("no-launcher", orphan.start, "")
    assert found.age_s < 1000 and found.command.startswith("sglang::scheduler_TP7")
    assert asked.returncode == 2 and "--yes" in asked.stderr and there_after_asking
    assert f"pid {orphan.pid}" in asked.stderr
    assert f"pid {orphan.pid}" in status.stdout and f" --orphan {orphan.pid}" in status.stdout
    assert f"pid {living.pid} " not in status.stdout
    fixes = [one["fix"] for one in json.loads(doctor.stdout.splitlines()[-1])["data"]["hosts"]["box"]["findings"]]
    assert any(f"--orphan {orphan.pid}" in fix for fix in fixes)
    assert refused.returncode == 1 and "is no orphan" in refused.stderr
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (one,) = json.loads(ended.stdout.splitlines()[-1])["data"]["orphans"]
    assert one["ended"] == [{"pid": orphan.pid, "command": "TP7", "by": "TERM"}] and one["left"] == []
    assert not is_there(orphan.pid) and is_there(other.pid) and is_there(living.pid)
    audit = hsops(tmp_path, "audit").stdout
    assert "stop-orphan" in audit and f"pid {orphan.pid}" in audit


def test_a_pid_that_is_anothers_by_now_is_not_ended(agent: Agent, strays: Callable[..., int]) -> None:
    """The same pid with another start time: refused, and the process lives on."""
    orphan = abandoned(strays, 5)
    shown = told(agent, orphan.pid)
    assert shown

    with pytest.raises(AgentError) as caught:
        stop_orphan(Lock(agent, "test"), replace(shown, start=shown.start - 1), grace=0.1)

    assert caught.value.code == "changed-meanwhile" and is_there(orphan.pid)


def test_a_run_that_is_looked_after_has_none(agent: Agent) -> None:
    """Naming one of its processes is answered with the way to stop the run."""
    run = start(agent, "rank=0", "sleep")
    rank = rank_of(run.pid)

    with pytest.raises(AgentError) as caught:
        orphans(agent, rank.pid)

    assert caught.value.code == "not-an-orphan" and f"hsops stop --run {run.id}" in caught.value.message
    assert told(agent, rank.pid) is None


def test_a_run_whose_supervisor_died(agent: Agent, tmp_path: Path) -> None:
    """Its processes are orphans; another state folder sees them, says whose they are, and does not end them."""
    run = start(agent, "rank=0", "sleep")
    rank = rank_of(run.pid)
    before = told(Agent(agent.host, python=sys.executable, state_dir=str(tmp_path / "other")), rank.pid)
    state = json.loads((Path(run.directory) / "state.json").read_text())
    supervisor = state["supervisor"][0]

    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: not is_there(supervisor), "it is gone")
    own = told(agent, rank.pid)
    other = Agent(agent.host, python=sys.executable, state_dir=str(tmp_path / "other"))
    foreign = told(other, rank.pid)
    status = hsops(tmp_path, "status")
    assert foreign
    with pytest.raises(AgentError) as caught:
        stop_orphan(Lock(other, "test"), foreign, grace=0.1)
    there = is_there(rank.pid)
    stopped = stop_orphan(Lock(agent, "test"), own, grace=0.1) if own else None

    assert before is None
    assert own and (own.kind, own.run, own.refused) == ("no-supervisor", run.id, "")
    assert f"2 processes of run {run.id}, whose supervisor is gone" in status.stdout
    assert "another state folder" in foreign.refused and caught.value.code == "not-yours" and there
    assert stopped and stopped.left == () and not is_there(rank.pid)


def test_who_holds_gpu_memory(
    agent: Agent, strays: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder that no run owns is told with its memory; ended with proof; a pid of another container's is not."""
    tool = GpuTool(tmp_path / "tool", monkeypatch)
    library = tmp_path / "libcuda.so.1"
    library.write_bytes(b"\x7fELF")
    holder, innocent = strays(f"cuda={library}"), strays()
    run = start(agent, "sleep")
    tool.tell((holder, 72704), (innocent, 4096), (run.pid, 9000), (os.getpid(), 16))

    found = {one.pid: one for one in orphans(agent).found}
    status = hsops(tmp_path, "status")
    refused = hsops(tmp_path, "stop", "--orphan", str(innocent), "--yes")
    ended = hsops(tmp_path, "stop", "--orphan", str(holder), "--yes")

    assert {holder, innocent} <= set(found) and not {run.pid, os.getpid()} & set(found)
    assert (found[holder].kind, found[holder].gpu_mib, found[holder].gpus) == ("gpu-memory", 72704, ("3",))
    assert f"pid {holder}" in status.stdout and "71 GiB on GPU 3" in status.stdout
    assert refused.returncode == 1 and "another container" in refused.stderr and is_there(innocent)
    assert ended.returncode == 0 and "71 GiB back after" in ended.stdout and not is_there(holder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_another_users_process_is_refused(agent: Agent, tmp_path: Path) -> None:
    """Root could end it, and does not."""
    argv = ["sglang::scheduler_TP1", "600"]
    other = subprocess.Popen(argv, executable="/bin/sleep", user=65534, start_new_session=True)
    try:
        wait_for(lambda: procs.title(other.pid) == " ".join(argv), "its title")
        shown = told(agent, other.pid)
        done = hsops(tmp_path, "stop", "--orphan", str(other.pid), "--yes")

        assert shown and "another user" in shown.refused
        assert done.returncode == 1 and "not ours to end" in done.stderr and is_there(other.pid)
    finally:
        other.kill()
        other.wait()
