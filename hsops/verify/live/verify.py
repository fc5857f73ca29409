"""``hsops verify --live``: drive, bring, judge."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hsops.core.deadline import QUICK
from hsops.core.errors import UnhealthyError
from hsops.core.events import Emit, Progress
from hsops.core.runs import Run
from hsops.remote.agent import Agent
from hsops.remote.runs import alive_run, need_capture
from hsops.remote.scratch import scratch
from hsops.remote.server import Server
from hsops.verify.live.bench import Bench, Bring
from hsops.verify.live.checks import FAIL, KINDS, PASS, Check, skipped
from hsops.verify.live.drive import ask_again, check_folder, drive
from hsops.verify.live.evidence import Taken
from hsops.verify.live.head import Launched
from hsops.verify.live.measure import slots_of
from hsops.verify.live.plan import SCORED, Room, plan, room_of


@dataclass(frozen=True, slots=True)
class Job:
    """What to check.

    Args:
        server: its name.
        model: as its launch names it.
        env: of its launch.
    """

    server: str
    model: str
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Report:
    """What was found.

    Args:
        run: id of the run that was asked.
        tp: its ranks.
        tokens: of the prompt that all checks are about.
        states: names of what is captured.
        dtype: of the states, safetensors' name.
        checks: in the order of ``KINDS``.
        seconds: how long it took.
    """

    run: str
    tp: int
    tokens: int
    states: tuple[str, ...]
    dtype: str
    checks: tuple[Check, ...]
    seconds: float


def verify_live(agent: Agent, job: Job, bring: Bring, emit: Emit) -> Report:
    """Check the capture of the server's living run. It serves on meanwhile.

    Args:
        agent: on its host.
        job: which server.
        bring: fetches a dump folder of the host.
        emit: told the progress.

    Raises:
        UnhealthyError: no run that captures, or it is not healthy.
        HsopsError: it broke meanwhile, or wrote nothing.
    """
    started = time.monotonic()
    run = need_capture(agent, job.server, alive_run(agent, job.server))
    if run.capture_fault:
        found = [Check("hello", FAIL, run.capture_fault)]
        return _report(run, 0, found, None, time.monotonic() - started)
    name = agent.host.name
    with agent.at(run).tunnel(run.port) as port, Server(port, host=name, concurrency=1, keys=run.keys) as server:
        server.check_health()
        info, room = _room(agent, run, server)
        todo = plan(room)
        if not todo.subject:
            raise UnhealthyError("the server takes no prompt long enough for a check", host=name)
        with check_folder(agent, run, server, emit) as folder, scratch() as here:
            steps = len(todo.calls) + 2
            seen = drive(server, folder, todo, emit, steps=steps)
            emit(Progress("verify", steps - 2, steps, "steps", detail="reading what the ranks wrote"))
            bench = Bench(todo, seen, folder, here=here, bring=bring)
            hello = Check("hello", PASS, f"{run.tp} ranks say so", {"ranks": run.tp})
            made = {check.name: check for check in (hello, *bench.judge())}
            emit(Progress("verify", steps - 1, steps, "steps", detail="lm_head"))
            launched = _launched(job, run, info)
            made["lm_head"] = bench.judge_head(launched)
            for name, call in bench.open.items():
                emit(Progress("verify", steps - 1, steps, "steps", detail=f"{name}: is it the model's own doing?"))
                if not isinstance(seen.answer(SCORED), str):
                    ask_again(server, folder, call, todo, seen)
                made[name] = bench.judge_again(made[name], launched)
            emit(Progress("verify", steps, steps, "steps"))
    return _report(run, todo.subject, list(made.values()), bench.alone, time.monotonic() - started)


def _room(agent: Agent, run: Run, server: Server) -> tuple[Mapping[str, Any], Room]:
    info = server.info()
    words = (*run.argv, "", "")
    path = words[words.index("--model-path") + 1] if "--model-path" in words else ""
    return info, room_of(info, agent.call("model-read", deadline=QUICK, path=path))


def _launched(job: Job, run: Run, info: Mapping[str, Any]) -> Launched:
    return Launched(
        model=str(info.get("model_path") or job.model),
        load_format=str(info.get("load_format") or ""),
        env=job.env,
        patches=tuple(run.patches.values()),
        full_precision=bool(info.get("enable_fp32_lm_head")),
    )


def _report(run: Run, tokens: int, found: list[Check], alone: Taken | None, seconds: float) -> Report:
    """All checks in order; those that were not made are skipped because the capture is not at work."""
    made = {check.name: check for check in found}
    every = tuple(made.get(name) or skipped(name, "the capture is not at work") for name in KINDS)
    states, dtype = (slots_of(alone.sample), alone.sample.dtype) if alone else ((), "")
    return Report(run.id, run.tp, tokens, states, dtype, every, seconds)
