"""``hsops launch``: start a server, and know that it is healthy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hsops.cli import diagnose, several, stop
from hsops.cli.wiring import Session, run
from hsops.core.errors import ConfigError, UnhealthyError, UsageError
from hsops.core.events import Note
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.core.inventory import ServerSpec
    from hsops.core.runs import Node, Run
    from hsops.launch.plan import Plan
    from hsops.launch.start import Started
    from hsops.launch.wait import Healthy, Stalled
    from hsops.remote.agent import Agent


_STAYS = "exit 7; the server still runs   hsops stop ends it"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for; ``timeout`` and ``stall_after`` in seconds, None for the defaults."""

    server: str | None = None
    check: bool = False
    wait: bool = False
    replace: bool = False
    timeout: float | None = None
    stall_after: float | None = None
    stop_on_failure: bool = False
    without_patches: bool = False


def launch(
    ctx: typer.Context,
    server: Annotated[str, typer.Argument(metavar="SERVER", help="A server of the inventory (the default).")] = "",
    *,
    check: Annotated[bool, typer.Option("--check", help="Only show the command and its environment.")] = False,
    wait: Annotated[bool, typer.Option("--wait-healthy", help="Watch until it really answers.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Stop a run that is another, or not healthy, first.")
    ] = False,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", min=1, help="Longest wait [7200].")] = None,
    stall_after: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=1, help="Least silence that is a stall [30; 300 for an unknown step]."),
    ] = None,
    stop_on_failure: Annotated[
        bool, typer.Option("--stop-on-failure", help="With --wait-healthy: stop the run when it dies or hangs.")
    ] = False,
    without_patches: Annotated[
        bool, typer.Option("--without-patches", help="As if it had none: to know whether one is to blame.")
    ] = False,
) -> None:
    """Start a server detached; with --wait-healthy watch every rank until it answers, dies or stalls."""
    wish = Wish(server or None, check, wait, replace, timeout, stall_after, stop_on_failure, without_patches)
    run(ctx, "launch", lambda session: bring_up(session, wish))


def bring_up(session: Session, wish: Wish) -> Outcome:
    """The command's body, for playbooks too."""
    if wish.check and (wish.wait or wish.replace):
        raise UsageError("--check only looks; it goes with neither --wait-healthy nor --replace")
    if wish.stop_on_failure and not wish.wait:
        raise UsageError("--stop-on-failure needs --wait-healthy: without it nobody sees a failure")
    spec = session.server(wish.server)
    if wish.without_patches:
        spec = _bare(session, spec)
    plans = _plans(session, spec, check=wish.check)
    if wish.check:
        return _checked(session, spec, plans)
    started, healthy = _start(session, spec, plans, wish)
    plan = plans[0]
    data: dict[str, Any] = {"run": started.run.as_json(), "fresh": started.fresh, "notes": _notes(plan, started)}
    if healthy:
        line = f"already healthy, nothing to do · run {started.run.id} · port {started.run.port}"
        return Outcome({**data, "healthy": True}, [line])
    if not wish.wait:
        how = "started" if started.fresh else "already there, not healthy yet"
        where = f"pid {started.run.pid} · port {started.run.port}" if not started.run.pending else str(started.run.job)
        line = f"{spec.name}: run {started.run.id} {how} · {where}"
        return Outcome({**data, "healthy": None}, [line, "watch it: hsops launch --wait-healthy"])
    if wish.stop_on_failure:
        return _or_stop(session, spec, started.run, lambda: _wait(session, spec, plan, started, wish))
    return _wait(session, spec, plan, started, wish)


def _or_stop(session: Session, spec: ServerSpec, run: Run, wait: Callable[[], Outcome]) -> Outcome:
    """``wait``; when the run did not become healthy it is stopped, and what was ended is shown. Ctrl-C leaves it."""
    try:
        found = wait()
    except UnhealthyError as error:
        stopped = _stop(session, spec, run)
        for line in stopped.lines:
            session.console.emit(Note(line))
        error.fix = f"hsops logs {run.id}" if not stopped.exit_code else f"hsops stop --run {run.id}"
        raise
    if found.exit_code != UnhealthyError.exit_code:
        return found
    stopped = _stop(session, spec, run)
    lines = (*(line for line in found.lines if line != _STAYS), *stopped.lines)
    errors = tuple({**error, "fix": f"hsops logs {run.id}"} for error in found.errors)
    return replace(found, data={**found.data, "stop": stopped.data}, lines=lines, errors=(*errors, *stopped.errors))


def _stop(session: Session, spec: ServerSpec, run: Run) -> Outcome:
    session.console.emit(Note("--stop-on-failure: stopping it", spec.host))
    return stop.end(session, spec.name, run_id=run.id)


def _checked(session: Session, spec: ServerSpec, plans: Sequence[Plan]) -> Outcome:
    """``--check``: what would be started; of several hosts also that they reach each other."""
    from hsops.launch.meeting import met
    from hsops.launch.paste import pasted
    from hsops.render import launch as render

    lacks = tuple(lack for one in plans for lack in one.deployed.lacks)
    plans = plans if lacks else met(several.agents(session, spec), plans)
    shown = [
        _masked(asdict(one) | {"command": str(one.command), "shell": pasted(one), "secrets": len(one.secrets)}, one)
        for one in plans
    ]
    more = {"nodes": shown} if len(plans) > 1 else {}
    lines = [line for one in plans for line in render.plan_lines(one)]
    return Outcome({"plan": shown[0], **more}, lines, 1 if lacks else 0, lacks)


def _bare(session: Session, spec: ServerSpec) -> ServerSpec:
    """The server without its patches.

    Raises:
        HsopsError: one of them acts all the same, as it lies in SGLang's files.
    """
    from hsops.launch.start import check_gone

    patches = [session.inventory.patches[name] for name in spec.patches]
    for agent in several.agents(session, spec):
        check_gone(agent, spec, patches)
    return spec.model_copy(update={"patches": ()})


def _plans(session: Session, spec: ServerSpec, *, check: bool) -> tuple[Plan, ...]:
    """Of its hosts, by node rank; what is wrong on each of them is told at once.

    Raises:
        ConfigError, HsopsError: as ``plan``, ``inspect`` and ``spanning.joined``.
    """
    from hsops.core.nodes import shares
    from hsops.launch.spanning import joined

    found: list[Plan | ConfigError] = []
    for agent, node in zip(several.agents(session, spec), shares(spec.hosts, spec.tp), strict=True):
        found.append(_plan_or_faults(session, agent, spec, node, check=check))
    if wrong := [one for one in found if isinstance(one, ConfigError)]:
        raise ConfigError(list(dict.fromkeys(fault for one in wrong for fault in one.faults)), fix=wrong[0].fix)
    plans = [one for one in found if not isinstance(one, ConfigError)]
    return tuple(plans) if any(one.deployed.lacks for one in plans) else joined(plans)


def _plan_or_faults(
    session: Session, agent: Agent, spec: ServerSpec, node: Node | None, *, check: bool
) -> Plan | ConfigError:
    try:
        return _plan(session, agent, spec, node, check=check)
    except ConfigError as error:
        return error


def _plan(session: Session, agent: Agent, spec: ServerSpec, node: Node | None, *, check: bool) -> Plan:
    from hsops.launch.flags import Parser
    from hsops.launch.plan import plan
    from hsops.launch.spanning import on_node
    from hsops.launch.start import inspect, machine, parser

    patches = [session.inventory.patches[name] for name in spec.patches]
    captures = any(patch.kind == "hs-dump" for patch in patches)
    host = session.inventory.hosts[agent.host.name]
    deployed = inspect(agent, spec, patches, check=check)
    planned = plan(
        spec,
        host,
        deployed,
        captures=captures,
        machine=machine(agent, spec.env if spec.executor == "host" else {}),  # not the login node's
        parser=parser(agent, deployed.sglang) if spec.args else Parser(),
        fault=session.inventory_fault,
    )
    return on_node(planned, node)


def _start(session: Session, spec: ServerSpec, plans: Sequence[Plan], wish: Wish) -> tuple[Started, bool]:
    """The run, and whether it was there and healthy already."""
    from hsops.launch.health import is_healthy
    from hsops.launch.queue import check
    from hsops.launch.start import ensure
    from hsops.remote.runs import read_baseline

    known, plan, agent = several.runs_of(session, spec), plans[0], session.agent(spec.host)
    there = next((found for found in known if found.alive), None)
    healthy = False
    if there and there.spec_hash == plan.spec_hash and not there.pending:
        with agent.at(there).tunnel(there.port) as port:
            healthy = not there.capture_fault and not (there.parts and there.dead) and is_healthy(port, plan.api_key)
    if plan.job and (there is None or wish.replace):
        check(agent, session.server(plan.server), read_baseline(agent, plan.server).seconds)
    with ExitStack() as held:
        locks = [held.enter_context(session.lock(one.host)) for one in plans]
        started = ensure(locks, plans, known, replace=wish.replace, healthy=healthy, emit=session.console.emit)
    if started.fresh and there:
        stop.end_elsewhere(session, there, spec.hosts)
    if started.fresh:
        for note in plan.notes:
            session.console.emit(Note(note, plan.host))
    return started, healthy and not started.fresh


def _wait(session: Session, spec: ServerSpec, plan: Plan, started: Started, wish: Wish) -> Outcome:
    """Watch; at a stall look into it, and go on when it is only slow."""
    from hsops.core.launched import launched
    from hsops.launch.wait import DEFAULT_TIMEOUT_S, Healthy, Patience, wait_healthy
    from hsops.remote.runs import modules_of, read_baseline, write_baseline
    from hsops.render import launch as render

    agent = session.agent(spec.host)
    baseline = read_baseline(agent, spec.name)
    verdicts: list[Outcome] = []
    try:
        found = wait_healthy(
            several.agents(session, spec),
            started.run,
            baseline=baseline.of(plan.spec_hash, launched(started.run).key),
            patience=Patience(wish.timeout or DEFAULT_TIMEOUT_S, wish.stall_after, queue=wish.timeout is not None),
            emit=session.console.emit,
            fresh=started.fresh,
            nccl=spec.nccl or "",
            api_key=plan.api_key,
            modules=modules_of(agent, plan.model) if plan.dump_dir else (),
            goes_on=lambda stalled: _is_only_slow(session, spec, stalled, verdicts),
        )
    except KeyboardInterrupt:
        return _left(started.run)
    if not isinstance(found, Healthy):
        return _stalled(spec, found, verdicts[-1])
    write_baseline(agent, baseline.with_run(found.good))
    return Outcome(
        {**_data(found), "fresh": started.fresh, "notes": _notes(plan, started)}, render.healthy_lines(found)
    )


def _notes(plan: Plan, started: Started) -> list[str]:
    return [*plan.notes, *filter(None, [started.warning])]


def _is_only_slow(session: Session, spec: ServerSpec, found: Stalled, verdicts: list[Outcome]) -> bool:
    """Diagnose the run; whether it is on its way after all."""
    from hsops.render import launch as render

    for line in render.stalled_lines(found):
        session.console.emit(Note(line, spec.host))
    vouched = found.silent_s if found.usual_s is not None else 0.0
    verdict = diagnose.live(session, spec.name, run_id=found.run.id, unmoved_s=vouched, allowed_s=found.limit_s)
    verdicts.append(verdict)
    if verdict.exit_code:
        return False
    for line in (*verdict.lines, "slow, not stuck: going on"):
        session.console.emit(Note(line))
    return True


def _stalled(spec: ServerSpec, found: Stalled, verdict: Outcome) -> Outcome:
    lines = [*verdict.lines, _STAYS]
    name = (verdict.data.get("verdict") or {}).get("class", "unknown")
    message = f"{spec.name} stalled for {found.silent_s:.0f} s: {name}"
    error = {"type": "UnhealthyError", "message": message, "host": spec.host, "fix": "hsops stop"}
    return Outcome({**_data(found), "verdict": verdict.data.get("verdict")}, lines, exit_code=7, errors=(error,))


def _left(run: Run) -> Outcome:
    lines = [f"left; {run.server} stays, as run {run.id}   hsops status, hsops launch --wait-healthy, hsops stop"]
    return Outcome({"run": run.as_json(), "healthy": None, "left": True}, lines, exit_code=130)


def _data(found: Healthy | Stalled) -> dict[str, Any]:
    from hsops.launch.wait import Healthy

    log = {"lines": found.summary.lines, "stage": found.summary.stage}
    data: dict[str, Any] = {"run": found.run.as_json(), "healthy": isinstance(found, Healthy), "log": log}
    if isinstance(found, Healthy):
        return {**data, "seconds": found.seconds}
    return {**data, "stalled": {"silent_s": found.silent_s, "limit_s": found.limit_s, "usual_s": found.usual_s}}


def _masked(shown: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """No secret in JSON either."""
    argv = ["***" if word in plan.secrets else word for word in shown["argv"]]
    return {**shown, "argv": argv, "env": dict(plan.command.env)}
