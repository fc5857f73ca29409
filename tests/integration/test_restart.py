"""A server that fails is started again by its supervisor, as its policy says, and never when it was stopped."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import procs
from hsops.core.baseline import Baseline
from hsops.core.events import Note
from hsops.core.runs import Run
from hsops.launch.watch import Watch
from hsops.remote import runs
from hsops.remote.agent import Agent
from hsops.remote.log import LogCut, follow_log
from tests.running import marked, start

QUICK = {"max": 2, "window": 600.0, "backoff": 0.1}
PATIENCE_S = 40.0


def serve(agent: Agent, policy: dict[str, Any]) -> Run:
    """A server with two ranks that listens."""
    run = start(agent, "{port}", "2", victim="standin.py", restart=policy)
    assert run.attempt == 1
    return until(agent, serves)


def serves(run: Run) -> bool:
    """And its supervisor knows it."""
    return is_up(run) and bool(state_of(run)["served"])


def is_up(run: Run) -> bool:
    """With both ranks, and all said."""
    return set(run.ranks) == {"TP0", "TP1"} and b"ready\n" in Path(run.log).read_bytes()


def until(agent: Agent, wanted: Callable[[Run], bool]) -> Run:
    """The only run, once it is as wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        (run,) = runs.list_runs(agent)
        if wanted(run):
            return run
        assert time.monotonic() < deadline, (run, state_of(run))
        time.sleep(0.05)


def state_of(run: Run) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((Path(run.directory) / "state.json").read_text())
    return state


def test_a_server_that_is_killed_comes_back_as_often_as_it_may(agent: Agent) -> None:
    """Each attempt is numbered and keeps its log and how it ended; who follows the log sees them all."""
    first = again = serve(agent, QUICK)
    for attempt in (2, 3):
        run = again
        os.kill(run.pid, signal.SIGKILL)
        again = until(agent, lambda run, attempt=attempt: run.attempt == attempt and serves(run))  # type: ignore[misc]
        assert again.phase == "running" and again.exit is None and again.pid != run.pid
        assert set(marked(run.id)) >= {again.pid} and procs.look(run.pid) is None
    os.kill(again.pid, signal.SIGKILL)
    last = until(agent, lambda run: run.phase == "exited")
    events = [json.loads(line) for line in (Path(last.directory) / "events.jsonl").read_text().splitlines()]
    logs = [(Path(last.directory) / name).read_bytes() for name in ("server.1.log", "server.2.log", "server.log")]
    seen = list(follow_log(agent, last.id, attempt=1, follow=True))

    assert last.not_restarted == "it was started again 2 times within 600 s"
    assert [(one.number, one.exit and one.exit.signal) for one in last.attempts] == [(1, "SIGKILL"), (2, "SIGKILL")]
    assert last.attempts[0].started == first.started
    assert [event["attempt"] for event in events if event["kind"] == "started"] == [1, 2, 3]
    assert all(log.startswith(b"server port ") and b"ready\n" in log for log in logs)
    assert b"".join(piece for piece in seen if isinstance(piece, bytes)) == b"".join(logs)
    assert [piece for piece in seen if isinstance(piece, LogCut)] == [LogCut("restarted")] * 2


def test_stop_ends_a_server_that_waits_to_be_started_again(agent: Agent) -> None:
    """Nobody else may start it meanwhile; after stop it never comes."""
    run = serve(agent, {**QUICK, "backoff": 300.0})
    os.kill(run.pid, signal.SIGKILL)
    waiting = until(agent, lambda run: run.restart_at is not None and not marked(run.id))
    watch = Watch(waiting, Baseline("victim"), floor=None, now=0.0)
    with runs.follow_run(agent, run.id) as events:
        told = list(watch.take(next(event for event in events if event["kind"] == "run"), 1.0))

    stopped = runs.stop_run(agent, run.id)

    assert waiting.phase == "running"
    assert watch.judge(99.0) is None and "the host starts it again in" in str(told[0])  # launch attaches, and waits
    assert stopped.run.phase == "stopped" and stopped.run.attempt == 1 and stopped.left == ()
    assert not procs.is_alive(*state_of(run)["supervisor"])


def test_a_rank_that_died_unnoticed_is_a_failure(agent: Agent) -> None:
    """Older launchers wait for it for ever: the rest is ended, and the whole server is started again."""
    run = serve(agent, {**QUICK, "rank_grace": 0.5})
    watch, told = Watch(run, Baseline("victim"), floor=None, now=0.0), list[str]()

    os.kill(run.rank_pids["TP1"], signal.SIGKILL)
    with runs.follow_run(agent, run.id) as events:
        for event in events:
            told += [str(said) for said in watch.take(event, 1.0) if isinstance(said, Note)]
            assert watch.judge(20.0) is None  # whoever waits for its health waits on
            if watch.run.attempt == 2:
                break
    again = until(agent, lambda run: run.attempt == 2 and is_up(run))

    said = " ".join(told)  # between two looks a step may be over: then the next word says both
    assert told and "TP1" in told[0] and "killed by SIGKILL" in told[0]
    assert "the host starts it again in" in said or "the host has started it again, as attempt 2" in said
    assert again.attempts[0].ranks["TP1"] is not None and again.ranks == {"TP0": None, "TP1": None}
    assert run.pid not in marked(run.id)


@pytest.mark.parametrize("code,why", [(2, "command line was refused"), (3, "never listened")])
def test_a_start_that_would_fail_again_is_left(agent: Agent, code: int, why: str) -> None:
    """A wrong flag is no reason to load the weights three times."""
    start(agent, f"exit={code}", restart=QUICK)

    ended = until(agent, lambda run: not run.alive)

    assert ended.attempt == 1 and ended.phase == "exited" and why in ended.not_restarted


def test_an_attempt_that_never_listened_is_the_last(agent: Agent, tmp_path: Path) -> None:
    """That the one before it did says nothing of this one."""
    run = start(agent, f"once={tmp_path}/begun", "{port}", "sleep", restart=QUICK)
    until(agent, lambda run: bool(state_of(run)["served"]))
    os.kill(run.pid, signal.SIGKILL)

    ended = until(agent, lambda run: not run.alive)

    assert ended.attempt == 2 and ended.phase == "exited" and "never listened" in ended.not_restarted
