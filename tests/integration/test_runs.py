"""Supervision, with real processes: the agent starts a tree, records how each process ends, and ends it whole."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import leases
from hsops.core.errors import AgentError
from hsops.core.runs import Run, parse_run
from hsops.remote import runs
from hsops.remote.agent import Agent
from hsops.remote.log import read_log
from tests.running import VICTIMS, is_there, marked, start


def until(agent: Agent, run: Run, wanted: Callable[[Run], bool]) -> Run:
    """Follow the run until it is as wanted."""
    with runs.follow_run(agent, run.id) as events:
        for event in events:
            if event["kind"] in ("run", "result") and wanted(found := parse_run(event["run"])):
                return found
    raise AssertionError("the run ended and was never as wanted")


def said(agent: Agent, run: Run, text: bytes) -> bytes:
    """Follow the log until it has said ``text``; the log so far."""
    log = b""
    with contextlib.closing(read_log(agent, run.id, follow=True)) as pieces:
        for piece in pieces:
            log += piece
            if text in log:
                return log
    raise AssertionError(log)


def test_what_fails_beside_a_start_is_a_warning(agent: Agent, tmp_path: Path) -> None:
    """The server is there by then: a launch that is told to have failed would be made a second time."""
    in_the_way = tmp_path / "state/audit.jsonl"
    in_the_way.mkdir(parents=True)
    words = {"server": "victim", "model": "none", "tp": 1, "port": 0, "env": {}, "spec_hash": "s", "patches": {}}
    argv = ["{python}", str(VICTIMS / "tree.py"), "sleep"]

    done = agent.call("run-start", **words, needs=[], argv=argv)
    in_the_way.rmdir()

    (run,) = runs.list_runs(agent)
    assert "the audit log lacks this launch: " in done["warning"] and "audit.jsonl" in done["warning"]
    assert run.alive and run.id == done["run"]["id"]
    assert json.loads((Path(run.directory) / "spec.json").read_text())["where"] == leases.where()


def test_what_ranks_said_of_their_capture_outlives_the_dump_folder(agent: Agent, tmp_path: Path) -> None:
    """Somebody makes room in the RAM disk: the server still captures, and launch must not say otherwise."""
    dumps = tmp_path / "dumps"
    run = start(agent, "say=hello", "exit=3", dump_dir=str(dumps))
    (dumps / "hello").mkdir()
    hello = {"run": run.id, "pid": 7, "rank": 0, "ok": True, "reason": ""}
    (dumps / f"hello/{run.id}.7.json").write_text(json.dumps(hello))
    before = agent.call("run-list", server=None)["runs"][0]["hellos"]

    shutil.rmtree(dumps)

    assert before == [hello] == agent.call("run-list", server=None)["runs"][0]["hellos"]


def test_start_returns_while_the_server_runs(agent: Agent) -> None:
    """The call ends although the server stays for ever: nothing of the channel is held open."""
    run = start(agent, "sleep")

    assert run.phase == "running" and is_there(run.pid)
    assert os.readlink(f"/proc/{run.pid}/fd/0") == "/dev/null"
    assert os.readlink(f"/proc/{run.pid}/fd/1") == os.readlink(f"/proc/{run.pid}/fd/2") == run.log


def test_exit_code(agent: Agent) -> None:
    """A server that ends by itself leaves its exit code, its time and its log."""
    run = start(agent, "say=hello", "exit=3")

    ended = until(agent, run, lambda r: not r.alive)

    assert ended.phase == "exited"
    assert ended.exit and (ended.exit.code, ended.exit.signal) == (3, "")
    assert b"".join(read_log(agent, run.id)) == b"hello\n"


def test_who_waits_for_last_words_is_told_something_often(agent: Agent) -> None:
    """A rank was killed and the rest says nothing: the moment to judge it comes without a line of the log."""
    run = start(agent, "rank=0", "rank=1", "sleep")
    ready = until(agent, run, lambda run: {"TP0", "TP1"} <= set(run.rank_pids))
    os.kill(ready.rank_pids["TP1"], signal.SIGKILL)
    until(agent, run, lambda run: bool(run.ranks["TP1"]))

    with runs.follow_run(agent, run.id) as events:
        kinds = [event["kind"] for event, _ in zip(events, range(4), strict=False)]

    assert kinds == ["run", "tick", "tick", "tick"]


def test_signal_from_outside(agent: Agent) -> None:
    """A server killed by somebody leaves the signal's name."""
    run = start(agent, "sleep")

    os.kill(run.pid, signal.SIGKILL)
    ended = until(agent, run, lambda r: not r.alive)

    assert ended.exit and (ended.exit.code, ended.exit.signal, ended.exit.oom) == (None, "SIGKILL", False)


def test_death_of_a_rank_is_noticed_at_once(agent: Agent) -> None:
    """A rank's end is recorded with its signal although its parent lives on and does not look."""
    for attempt in range(3):  # who notices by looking now and then is late each time; a busy machine is so once
        run = start(agent, "rank=0", "rank=1", "sleep", server=f"victim-{attempt}")
        seen = until(agent, run, lambda r: set(r.ranks) == {"TP0", "TP1"})
        killed = time.time()
        os.kill(seen.rank_pids["TP1"], signal.SIGKILL)
        found = until(agent, run, lambda r: r.ranks["TP1"] is not None)
        if found.ranks["TP1"] and found.ranks["TP1"].time - killed < 1:
            break

    assert found.ranks["TP1"] and found.ranks["TP1"].time - killed < 1  # as it was recorded, not as we heard of it
    assert found.alive and found.ranks["TP0"] is None
    assert found.ranks["TP1"].signal == "SIGKILL"
    assert found.dead and found.dead[0] == "TP1"


def test_a_rank_that_died_before_its_title_was_read(agent: Agent) -> None:
    """It is the one that the others are not; with two of them unknown it is a scheduler. Either ends a launch."""
    known = start(agent, "rank=0", "gone=3", "sleep")
    unknown = start(agent, "gone=3", "sleep", server="other")

    first = until(agent, known, lambda r: r.dead is not None).dead
    second = until(agent, unknown, lambda r: r.dead is not None).dead

    assert first and (first[0], first[1].code) == ("TP1", 3)
    assert second and (second[0], second[1].code) == ("scheduler", 3)


def test_orphans_are_seen_and_ended(agent: Agent) -> None:
    """A grandchild that left the session and ignores SIGTERM is still known after its parents, and is ended."""
    run = start(agent, "orphan", "exit=0")
    orphan = int(said(agent, run, b"orphan ").split()[1])

    ended = until(agent, run, lambda r: not r.alive)
    stopped = runs.stop_run(agent, run.id, grace=0.2)

    assert ended.left == (orphan,)
    assert [(row["pid"], row["by"]) for row in stopped.ended] == [(orphan, "KILL")]
    assert stopped.left == () and not is_there(orphan)


def test_stop_ends_the_stubborn_and_nothing_else(agent: Agent) -> None:
    """A tree that ignores SIGTERM is killed whole after the grace; a bystander with the same title is not touched."""
    bystander = subprocess.Popen(["sglang::scheduler_TP1", "600"], executable="/bin/sleep")
    run = start(agent, "stubborn", "rank=0", "rank=1", "orphan", "say=up", "sleep")
    said(agent, run, b"up")

    stopped = runs.stop_run(agent, run.id, grace=0.3)

    try:
        assert stopped.left == () and len(stopped.ended) == 4
        assert {row["by"] for row in stopped.ended} == {"KILL"}
        assert stopped.run.phase == "stopped" and not marked(run.id)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_stop_leaves_no_shared_memory(agent: Agent) -> None:
    """The resource tracker outlives what it cleans up after, so that a killed run frees its /dev/shm."""
    run = start(agent, "stubborn", "shared=", "say=up", "sleep")
    (name,) = re.findall(rb"segment (\S+)", said(agent, run, b"up"))
    segment = Path("/dev/shm") / name.decode().lstrip("/")
    assert segment.exists()

    stopped = runs.stop_run(agent, run.id, grace=0.1)

    assert stopped.left == ()
    assert not segment.exists()


def test_stop_twice(agent: Agent) -> None:
    """Stopping what has stopped ends nothing and is no error."""
    run = start(agent, "sleep")
    runs.stop_run(agent, run.id)

    again = runs.stop_run(agent, run.id)

    assert again.ended == () and again.left == () and again.run.phase == "stopped"


def test_supervisor_killed(agent: Agent) -> None:
    """Without its supervisor a run is still listed as running, and stop still ends all of it."""
    run = start(agent, "rank=0", "orphan", "say=up", "sleep")
    said(agent, run, b"up")
    state = json.loads((Path(run.directory) / "state.json").read_text())

    os.kill(state["supervisor"][0], signal.SIGKILL)
    (listed,) = (found for found in runs.list_runs(agent, "victim") if found.alive)
    stopped = runs.stop_run(agent, run.id, grace=0.5)

    assert listed and listed.id == run.id
    assert stopped.left == () and stopped.run.phase == "stopped" and not marked(run.id)


def test_ranks_whose_environment_is_gone(agent: Agent) -> None:
    """With supervisor and server both killed, a rank without the mark is still found by the log it writes to."""
    run = start(agent, "rank=0", "say=up", "sleep", env={"HSOPS_TEST": "1"})
    said(agent, run, b"up")
    seen = until(agent, run, lambda r: "TP0" in r.ranks)
    with open(run.log, "ab") as log:
        bare = subprocess.Popen(["sglang::scheduler_TP1", "600"], executable="/bin/sleep", env={}, stdout=log)
    state = json.loads((Path(run.directory) / "state.json").read_text())

    os.kill(state["supervisor"][0], signal.SIGKILL)
    os.kill(run.pid, signal.SIGKILL)
    stopped = runs.stop_run(agent, run.id, grace=0.2)

    assert {row["pid"] for row in stopped.ended} >= {bare.pid, seen.rank_pids["TP0"]}
    assert stopped.left == () and bare.wait(5) == -signal.SIGKILL


def test_a_reused_pid_is_not_killed(agent: Agent) -> None:
    """A record whose pid now belongs to somebody else leaves that somebody alone."""
    run = start(agent, "exit=0")
    until(agent, run, lambda r: not r.alive)
    bystander = subprocess.Popen(["/bin/sleep", "600"])
    path = Path(run.directory) / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "phase": "running", "pid": bystander.pid, "exit": None}))

    stopped = runs.stop_run(agent, run.id)

    try:
        assert stopped.ended == () and bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_port_taken_names_the_holder(agent: Agent) -> None:
    """A port in use is refused before anything starts, with who holds it."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()

        with pytest.raises(AgentError) as refused:
            start(agent, "sleep", port=holder.getsockname()[1])

    assert refused.value.code == "port-taken"
    assert refused.value.detail["pid"] == os.getpid()
    assert runs.list_runs(agent) == ()


@pytest.mark.parametrize(
    "changed,code",
    [
        ({"model": "/no/such/model"}, "model-missing"),
        ({"model": "~/no-such-model"}, "model-missing"),
        ({"dump_dir": "/proc/no"}, "dump-dir-not-writable"),
        ({"needs": ["sglang"]}, "no-sglang"),
        ({"argv": ["/no/such/program"]}, "not-started"),
        ({"host": "203.0.113.7", "port": 34567}, "port-unusable"),
    ],
)
def test_refusals(agent: Agent, changed: dict[str, Any], code: str) -> None:
    """What cannot work is refused with a code, and nothing is left running."""
    with pytest.raises(AgentError) as refused:
        start(agent, "sleep", **changed)

    assert refused.value.code == code
    assert not any(found.alive for found in runs.list_runs(agent, "victim"))


def test_one_run_a_server(agent: Agent) -> None:
    """A second start of the same server is refused and names the run."""
    run = start(agent, "sleep")

    with pytest.raises(AgentError) as refused:
        start(agent, "sleep")

    assert (refused.value.code, refused.value.detail["run"]) == ("already-running", run.id)


def test_log_is_byte_exact(agent: Agent) -> None:
    """Bytes that are no UTF-8 come back exactly, whole or as the last lines."""
    run = start(agent, "say=one", "bytes", "say=two", "say=three", "exit=0")
    until(agent, run, lambda r: not r.alive)
    wanted = Path(run.log).read_bytes()

    assert b"".join(read_log(agent, run.id)) == wanted
    assert b"".join(read_log(agent, run.id, lines=2)) == b"two\nthree\n"
    assert b"".join(read_log(agent, run.id, lines=0)) == b""
    assert b"".join(read_log(agent, run.id, lines=10**6)) == wanted


_DIES = """
import multiprocessing, os, signal, subprocess, sys
def die(who):
    print("last words of", who)  # nobody flushes
    os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=die, args=("a rank",))
    child.start()
    child.join()
    subprocess.run([sys.executable, __file__.replace("server", "tool")])
    die("the server")
"""


def test_a_killed_process_has_said_all_in_the_log(agent: Agent, tmp_path: Path) -> None:
    """The server, a rank that multiprocessing spawned, a Python that one of them ran: none holds its output back."""
    (tmp_path / "server.py").write_text(_DIES)
    (tmp_path / "tool.py").write_text(_DIES.partition("if __name__")[0] + "die('a tool')")

    run = start(agent, argv=["{python}", str(tmp_path / "server.py")])
    until(agent, run, lambda r: not r.alive)

    assert Path(run.log).read_text().splitlines() == [
        f"last words of {who}" for who in ("a rank", "a tool", "the server")
    ]


def test_environment_and_placeholders(agent: Agent) -> None:
    """The run's id and folder are filled into the environment; a secret's value is not kept."""
    run = start(agent, "sleep", env={"A_FILE": "{run_dir}/x", "SGLANG_HS_RUN": "{run}", "HF_TOKEN": "hf_secret"})

    environ = Path(f"/proc/{run.pid}/environ").read_bytes().split(b"\0")

    assert f"A_FILE={run.directory}/x".encode() in environ
    assert f"SGLANG_HS_RUN={run.id}".encode() in environ and b"HF_TOKEN=hf_secret" in environ
    kept = b"".join(path.read_bytes() for path in Path(run.directory).iterdir() if path.is_file())
    assert b"hf_secret" not in kept
