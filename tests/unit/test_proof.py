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
