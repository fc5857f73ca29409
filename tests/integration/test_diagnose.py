"""Diagnosis of real processes that hang, stop, poll, read and die in known ways, through the agent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import probe_faults, procs
from hsops.agent.probe import Probe
from hsops.agent.probe_tools import state, tracer
from hsops.core.events import Event
from hsops.core.runs import Run, parse_run
from hsops.diagnose import Verdict, judge
from hsops.diagnose.live import probe
from hsops.diagnose.reading import from_probe
from hsops.diagnose.watch import wait_for_silence
from hsops.remote import runs
from hsops.remote.agent import Agent, build
from hsops.remote.local import LocalHost

VICTIM = Path(__file__).parent.parent / "victims" / "server.py"
STEPS = (
    "Init torch distributed begin.",
    "Init torch distributed ends. elapsed=0.51 s, mem usage=0.02 GB",
    "Load weight begin. avail mem=18.33 GB",
    "Load weight end. elapsed=0.10 s, type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=18.33 GB",
    "Memory pool end. avail mem=18.33 GB",
)
READY = """[2026-11-29 17:41:44] INFO:     Started server process [31421]
[2026-11-29 17:41:44] INFO:     Uvicorn running on http://127.0.0.1:31020 (Press CTRL+C to quit)
[2026-11-29 17:41:46] The server is fired up and ready to roll!
"""
UPTO = {"begun": 3, "loaded": 4, "pool": 5, "ready": 5}

Start = Callable[..., tuple[Run, Callable[[], dict[str, Any]]]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts a victim as a run and gives it with a function that probes it; all are ended."""
    agent = Agent(LocalHost("here"), python=sys.executable, state_dir=str(tmp_path / "state"))

    def begin(
        *ranks: str, log: str, health: int = 0, env: dict[str, str] | None = None
    ) -> tuple[Run, Callable[[], dict[str, Any]]]:
        text = tmp_path / "text"
        text.write_text(lines(len(ranks), UPTO[log]) + (READY if log == "ready" else ""))
        words = ["{python}", str(VICTIM), str(text), "{port}", str(health), *ranks]
        raw = agent.call("run-start", **{**ARGUMENTS, "env": env or {}}, tp=len(ranks), argv=words)["run"]
        run = parse_run(raw)
        wait(lambda: time.time() - Path(run.log).stat().st_mtime > 60 and settled(run, ranks))
        return run, lambda: probe(agent, current(agent, run))

    yield begin
    for run in runs.list_runs(agent):
        runs.stop_run(agent, run.id, grace=0.0)


ARGUMENTS: dict[str, Any] = {
    "server": "victim", "model": "none", "port": 0, "host": "127.0.0.1", "env": {}, "spec_hash": "s", "dump_dir": "",
    "patches": {}, "needs": [],
}  # fmt: skip


def lines(tp: int, steps: int) -> str:
    """The log of a start up to a step, as SGLang writes it."""
    tags = [f" TP{rank}" for rank in range(tp)] if tp > 1 else [""]
    return "".join(f"[2026-11-29 17:41:4{i}{tag}] {step}\n" for i, step in enumerate(STEPS[:steps]) for tag in tags)


def current(agent: Agent, run: Run) -> Run:
    """The run as its record says now."""
    return next(found for found in runs.list_runs(agent) if found.id == run.id)


def settled(run: Run, ranks: tuple[str, ...]) -> bool:
    """Every rank is there, and one that stops itself or dies has done so."""
    tree = [p for p in procs.tree(run.pid) if p.comm == "sglang::schedul"]
    living = {procs.role(procs.title(p.pid)): p.state for p in tree if not p.zombie}
    wanted = {f"TP{i}": word for i, word in enumerate(ranks) if word != "kill"}
    stopped = all(living.get(rank) == "T" for rank, word in wanted.items() if word == "stop")
    return len(tree) == len(ranks) and set(living) == set(wanted) and stopped


def wait(happened: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until it has happened."""
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until
        with contextlib.suppress(OSError):
            time.sleep(0.02)


def verdict(raw: dict[str, Any], run: Run) -> Verdict:
    return judge(from_probe(raw, host="here", run=run))


def ranks_of(raw: dict[str, Any]) -> list[dict[str, Any]]:
    return [p for p in raw["processes"] if p["role"] == "scheduler"]


def test_a_busy_wait_is_named(start: Start) -> None:
    """Two ranks that spin after their weights and write to an eventfd are the seeds' hang; nobody is left stopped."""
    run, look = start("spin", "spin", log="loaded")

    raw = look()

    found = verdict(raw, run)
    assert found.name == "warmup-deadlock-busy-wait", found
    assert found.exit_code == 7
    for rank in ranks_of(raw):
        assert rank["strace"]["eventfd_writes"] > 0
        assert rank["strace"]["calls"] / rank["strace"]["seconds"] < 300
        assert rank["strace"]["detached"]
        assert (tracer(rank["pid"]), state(rank["pid"])) in [(0, "R"), (0, "S")]


def test_an_idle_poll_is_not_a_hang(start: Start) -> None:
    """A rank that asks the kernel all the time looks as busy; with a port that says 503 it is still no busy wait."""
    run, look = start("poll", log="pool", health=503)

    raw = look()

    found = verdict(raw, run)
    traced = ranks_of(raw)[0]["strace"]
    assert traced["calls"] / traced["seconds"] > 300  # a busy wait makes fewer
    assert not found.hung, found


def test_a_healthy_server_is_not_traced(start: Start) -> None:
    """Where /health says 200 the verdict is healthy, and strace stays away."""
    run, look = start("poll", "poll", log="ready", health=200)

    raw = look()

    assert verdict(raw, run).name == "healthy"
    assert {"probe": "strace", "why": "not-needed"} in [
        {"probe": c["probe"], "why": c["why"]} for c in raw["could_not"]
    ]
    assert all("strace" not in rank for rank in ranks_of(raw))


@pytest.mark.parametrize("env, shown", [({"CUDA_VISIBLE_DEVICES": "3,1"}, "3,1"), ({}, "")])
def test_which_gpus_the_server_is_shown(
    start: Start, env: dict[str, str], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own environment, which its ranks write over; unset is not unknown."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    _, look = start("poll", log="pool", env=env)

    assert look()["visible"] == shown


def test_where_nothing_runs_and_nothing_was_launched_it_says_so(tmp_path: Path) -> None:
    """The first thing that somebody types who does not know what there is."""
    agent = Agent(LocalHost("here"), python=sys.executable, state_dir=str(tmp_path / "state"))

    raw = probe(agent, None, server="tiny", port=1, tp=2)

    said = judge(from_probe(raw, host="here", run=None))
    assert (said.name, raw["visible"], raw["processes"]) == ("not-running", None, [])


def test_of_a_server_that_hsops_did_not_start_no_older_kill_is_told(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as old as its oldest process: whom the OOM killer took before was another."""
    run, _ = start("run", log="ready", health=200)
    asked: list[float] = []
    monkeypatch.setattr(
        "hsops.agent.probe_host.kernel_log", lambda since: asked.append(since) or {"oom": [], "xid": []}
    )

    found = Probe({"pid": run.pid, "port": run.port, "tp": 1}).gather()

    assert asked == [min(p["started"] for p in found["processes"])]
    assert abs(asked[0] - run.started) < 30


def test_a_stopped_rank_is_named_and_stays_as_it_is(start: Start) -> None:
    """SIGSTOP is seen, the rank is named, not traced, and not continued by looking."""
    run, look = start("sleep", "stop", log="pool")

    raw = look()

    found = verdict(raw, run)
    assert (found.name, found.rank) == ("rank-stopped", 1), found
    stopped = next(p for p in ranks_of(raw) if p["rank"] == 1)
    assert state(stopped["pid"]) == "T"
    assert "strace" not in stopped


def test_a_slow_load_is_not_a_hang(start: Start, tmp_path: Path) -> None:
    """Ten minutes without a line, but bytes come from the disk: loading."""
    weights = tmp_path / "weights"
    weights.write_bytes(bytes(1 << 22))
    run, look = start(f"read={weights}", f"read={weights}", log="begun")

    raw = look()

    found = verdict(raw, run)
    assert found.name == "loading", found
    assert found.exit_code == 0


def test_a_dead_rank_is_found_although_the_launcher_waits(start: Start) -> None:
    """A rank that was killed and not collected is named with its signal; the launcher knows nothing of it."""
    run, look = start("sleep", "kill", log="begun")

    raw = look()

    found = verdict(raw, run)
    assert (found.name, found.rank, found.confidence) == ("rank-killed", 1, "high"), found


def test_eight_ranks_within_the_budget(start: Start) -> None:
    """The whole look at eight ranks, all of them traced, stays within its budget."""
    _, look = start("spin", *["sleep"] * 7, log="loaded")

    raw = look()

    # 4 s on a quiet machine, where it took 19 s and more without budgets; a busy one gets 20 s and the end of a look
    assert raw["took_s"] < 25
    assert len(ranks_of(raw)) == 8
    assert all("calls" in rank["strace"] for rank in ranks_of(raw))


def test_eight_ranks_that_leave_no_core(start: Start) -> None:
    """Eight spinning ranks on a machine of few cores: it takes longer, the verdict stays, and all are let go."""
    run, look = start(*["spin"] * 8, log="loaded")

    raw = look()

    assert verdict(raw, run).name == "warmup-deadlock-busy-wait"
    assert all(tracer(rank["pid"]) == 0 and state(rank["pid"]) == "R" for rank in ranks_of(raw))


def test_output_that_goes_elsewhere_is_told(start: Start) -> None:
    """Standard output and error of every process are compared with the log."""
    run, look = start("sleep", log="begun")

    raw = look()

    assert {p["files"]["1"] for p in raw["processes"]} == {run.log}
    assert any(f.source == "files" and "nothing is hidden" in f.text for f in verdict(raw, run).evidence)


def test_killing_the_agent_while_it_traces_frees_the_rank(start: Start, tmp_path: Path) -> None:
    """kill -9 of the agent takes strace along; the rank runs on, traced by nobody."""
    run, _ = start("spin", log="loaded")
    (rank,) = [p.pid for p in procs.tree(run.pid) if p.comm == "sglang::schedul"]
    zipapp = tmp_path / "agent.pyz"
    zipapp.write_bytes(build())
    params = {"pid": run.pid, "port": run.port, "log": run.log, "budget_s": 60}
    request = json.dumps({"protocol": 1, "params": params})
    agent = subprocess.Popen([sys.executable, "-I", str(zipapp), "probe"], stdin=subprocess.PIPE, text=True)
    assert agent.stdin
    agent.stdin.write(request)
    agent.stdin.close()
    wait(lambda: tracer(rank) != 0)

    agent.kill()

    wait(lambda: tracer(rank) == 0)
    wait(lambda: state(rank) == "R")
    agent.wait()


def test_a_watch_ends_when_the_server_falls_silent(start: Start, tmp_path: Path) -> None:
    """It answers, then its main process is stopped: no token, no line; the diagnosis that follows names it."""
    run, look = start("poll", "poll", log="ready", health=200)
    agent = Agent(LocalHost("here"), python=sys.executable, state_dir=str(tmp_path / "state"))
    said: list[str] = []

    def heard(event: Event) -> None:
        said.append(str(event))
        if len(said) == 1:
            os.kill(run.pid, signal.SIGSTOP)

    heart = wait_for_silence(agent, run, silence_s=2.0, emit=heard)

    assert heart.alive and heart.said == "timeout", heart
    assert f"run {run.id} lives" in said[0]
    assert verdict(look(), run).name == "tokenizer-blocked"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be without the right to trace here")
def test_without_ptrace_the_ranks_write_their_stacks(start: Start, tmp_path: Path) -> None:
    """Out of a busy loop and out of a sleep: which rank spins, where, and what it costs that nobody may trace."""
    run, _ = start("spin", "sleep", log="loaded")

    raw = without_ptrace(tmp_path, {"run": run.id, "pid": run.pid, "log": run.log, "port": run.port})

    one, two = (rank["stacks"] for rank in ranks_of(raw))
    assert [look["threads"][0]["frames"][-1][0] for look in (*one, *two)] == ["<module>"] * 4, (one, two)
    assert {frame[0] for look in one for frame in look["threads"][0]["frames"]} == {"spin", "<module>"}
    assert {c["probe"]: c["why"] for c in raw["could_not"]}["py-spy"] in ("not-permitted", "not-found")
    assert {c["probe"]: c["why"] for c in raw["could_not"]}["strace"] == "not-permitted"
    assert raw["held"] == []
    calls = [rank["sample"]["main"]["calls"] for rank in ranks_of(raw)]
    assert (calls[0].keys(), "running" in calls[1]) == ({"running"}, False)
    assert "TP0: on a core all the time" in [f.text for f in verdict(raw, run).evidence if f.source == "threads"]
    assert [state(rank["pid"]) for rank in ranks_of(raw)] == ["R", "S"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be without the right to trace here")
def test_nobody_is_signalled_who_did_not_register(start: Start, tmp_path: Path) -> None:
    """The signal would end such a process: its stacks are missing, and it lives."""
    run, _ = start("sleep", log="loaded")
    (rank,) = [p.pid for p in procs.tree(run.pid) if p.comm == "sglang::schedul"]
    (Path(run.directory) / f"site/stacks.{rank}").unlink()

    raw = without_ptrace(tmp_path, {"run": run.id, "pid": run.pid, "log": run.log})

    assert [look["why"] for look in ranks_of(raw)[0]["stacks"]] == ["not-found"]
    assert {c["probe"]: c["why"] for c in raw["could_not"]}["stacks"] in ("not-permitted", "not-found")
    assert state(rank) == "S"


def without_ptrace(folder: Path, params: dict[str, Any]) -> dict[str, Any]:
    """A probe by an agent that may look into no process."""
    zipapp = folder / "agent.pyz"
    zipapp.write_bytes(build())
    request = {"protocol": 1, "params": {**params, "state_dir": str(folder / "state"), "budget_s": 20}}
    rights = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    command = [*rights, sys.executable, "-I", str(zipapp), "probe"]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, Any] = json.loads(done.stdout)["result"]
    return found


def test_a_sitecustomize_of_the_host_still_runs(tmp_path: Path) -> None:
    """The one that a run finds first hands on to the next on the path; without one there it says nothing."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    path = probe_faults.prepare(str(tmp_path / "run"), str(theirs))
    environment = {"PYTHONPATH": path, "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", "import sitecustomize, sys; print(sitecustomize.__file__, 'a sglang word')"]

    (theirs / "sitecustomize.py").write_text("print('theirs')\n")
    with_theirs = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    (theirs / "sitecustomize.py").unlink()
    alone = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert with_theirs.stdout.split()[:2] == ["theirs", str(theirs / "sitecustomize.py")]
    assert (alone.returncode, alone.stderr) == (0, "")
    assert len(list((tmp_path / "run/site").glob("stacks.*"))) == 2


def test_what_there_was_no_time_for_is_said(start: Start, tmp_path: Path) -> None:
    """A budget that the first looks use up: the later ones are missing with that reason, not silently."""
    run, _ = start("spin", log="loaded")
    agent = Agent(LocalHost("here"), python=sys.executable, state_dir=str(tmp_path / "state"))

    raw = agent.call("probe", budget_s=1.2, run=run.id, log=run.log, pid=run.pid)

    assert ("strace", "timed-out") in [(c["probe"], c["why"]) for c in raw["could_not"]]
