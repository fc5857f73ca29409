"""What stop leaves behind, and what it never waits for."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from hsops.agent import doctor_gpus, procs, proof
from hsops.agent.probe_tools import CouldNot

STUCK = """#!/bin/sh
echo $$ >"$0.pid"
exec sleep 30
"""


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvidia-smi that waits in the driver: it does not answer, and SIGKILL does not end it. The file of its pid."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(STUCK)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _: None)
    return tmp_path / "nvidia-smi.pid"


def end(pid: int) -> bool:
    """True when it was there."""
    there = procs.look(pid)
    return there is not None and not there.zombie and procs.send(pid, there.start, signal.SIGKILL)


def test_a_tool_that_outlives_sigkill_is_not_waited_for(stuck: Path) -> None:
    """stop, status and doctor would hang with it."""
    with pytest.raises(CouldNot) as caught:
        doctor_gpus.holders(2.0)

    assert end(int(stuck.read_text()))
    assert caught.value.why == "timed-out" and "nvidia-smi" in caught.value.message


def test_a_stop_goes_on_without_the_tools_answer(stuck: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signals matter more: nvidia-smi has a moment, and then nothing is known of GPU memory."""
    monkeypatch.setattr(proof, "_AHEAD_S", 2.0)

    told = proof.Proof([os.getpid()]).told()

    assert end(int(stuck.read_text()))
    assert told["gpu"]["could_not"]["why"] == "timed-out"


@pytest.mark.parametrize("since", [0.0, None, 4e9], ids=["run", "orphan", "older"])
def test_only_segments_that_a_run_has_made_are_removed(since: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its input file lies in /dev/shm too, and a process that belongs to no run may have anything open there."""
    monkeypatch.setattr(proof, "_gpus", lambda *_: CouldNot("not-found", "none"))
    name = f"hsops-test-{os.getpid()}"
    plain, segment, semaphore = (Path("/dev/shm") / f"{kind}{name}" for kind in ("", "psm_", "sem."))
    paths = {str(plain), str(segment), str(semaphore)}
    try:
        files = [path.open("w+b") for path in (plain, segment, semaphore)]
        child = subprocess.Popen(["sleep", "60"], stdin=files[0], stdout=files[1], stderr=files[2])
        for file in files:
            file.close()
        found = proof.Proof([child.pid], since=since)
        child.kill()
        child.wait()

        told = found.told()["shm"]

        removed = {str(segment), str(semaphore)} if since == 0.0 else set()
        assert told["segments"] == 3 and set(told["removed"]) == removed
        assert set(told["left"]) == paths - removed == {path for path in paths if os.path.exists(path)}
    finally:
        for path in paths:
            Path(path).unlink(missing_ok=True)


def test_a_file_of_another_file_system_is_no_segment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A container's /dev/shm counts its inodes as the host's does."""
    path = Path("/dev/shm") / f"psm_hsops-dev-{os.getpid()}"
    try:
        path.touch()
        of = path.stat()
        monkeypatch.setattr(procs, "inodes", lambda *_: {(of.st_dev + 1, of.st_ino)})

        assert proof._segments([1]) == {}
    finally:
        path.unlink(missing_ok=True)
