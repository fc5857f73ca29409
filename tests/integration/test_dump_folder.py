"""A dump folder has one server: the agent starts no second one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hsops.core.errors import AgentError
from hsops.remote import runs
from hsops.remote.agent import Agent
from tests.running import VICTIMS, start


def test_one_run_a_dump_folder(agent: Agent, tmp_path: Path) -> None:
    """Two servers would write the same files: the second is refused, by whatever path, and told of the first."""
    dumps, link = tmp_path / "dumps", tmp_path / "link"
    link.symlink_to(dumps)
    run = start(agent, "sleep", dump_dir=str(dumps))

    with pytest.raises(AgentError) as refused:
        start(agent, "sleep", server="other", dump_dir=str(link))
    runs.stop_run(agent, run.id, grace=0.0)
    start(agent, "sleep", server="other", dump_dir=str(link))

    assert refused.value.code == "dump-dir-taken" and f"run {run.id} of victim writes dumps" in refused.value.message


def test_a_dump_folder_is_its_ranks_whoever_has_started_them(agent: Agent, tmp_path: Path) -> None:
    """Another user's hsops, or none at all: the lock of a rank tells."""
    command = [sys.executable, str(VICTIMS / "claimer.py"), str(tmp_path / "dumps")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(VICTIMS.parents[1])}, **pipes) as other:
        assert other.stdout and other.stdout.readline() == b"ready\n"
        with pytest.raises(AgentError) as refused:
            start(agent, "sleep", dump_dir=str(tmp_path / "dumps"))
        assert not runs.list_runs(agent)
    start(agent, "sleep", dump_dir=str(tmp_path / "dumps"))

    assert refused.value.code == "dump-dir-taken"
    assert refused.value.detail["by"] == f"run 1130-other (pid {other.pid})"
