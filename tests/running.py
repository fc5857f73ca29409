"""Runs of this machine's agent, for tests; whatever they start is ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import procs
from hsops.core.runs import Run, parse_run
from hsops.remote import runs
from hsops.remote.agent import Agent
from hsops.remote.local import LocalHost

VICTIMS = Path(__file__).parent / "victims"


@contextmanager
def agent_here(state: Path) -> Iterator[Agent]:
    """The agent on this machine with a state of its own; at the end nothing runs of what it has started."""
    found = Agent(LocalHost("here"), python=sys.executable, state_dir=str(state))
    yield found
    for run in runs.list_runs(found):
        runs.stop_run(found, run.id, grace=0.0)
        assert not marked(run.id)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """``agent_here`` below the test's folder: what conftest.py gives to every test."""
    with agent_here(tmp_path / "state") as found:
        yield found


def wait_for(true: Callable[[], object], what: str, patience: float = 60.0) -> None:
    """Poll until it is so; ``what`` was waited for when it never is."""
    until = time.monotonic() + patience
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def start(agent: Agent, *words: str, victim: str = "tree.py", **changed: Any) -> Run:
    """A run of a victim."""
    params: dict[str, Any] = {
        "server": "victim", "model": "none", "tp": 2, "port": 0, "host": "127.0.0.1", "env": {}, "spec_hash": "s",
        "dump_dir": "", "patches": {}, "needs": [], "argv": ["{python}", str(VICTIMS / victim), *words],
    }  # fmt: skip
    return parse_run(agent.call("run-start", **{**params, **changed})["run"])


def marked(run: str) -> list[int]:
    """Processes of a run, whoever their parent is."""
    return [pid for pid, proc in procs.census().items() if not proc.zombie and run in procs.marks(pid)]


def is_there(pid: int) -> bool:
    """A zombie has ended."""
    proc = procs.look(pid)
    return proc is not None and not proc.zombie
