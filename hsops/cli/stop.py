"""``hsops stop``: end a server's whole process tree and nothing else, or an orphan; with proof that it is gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hsops.cli import several
from hsops.cli.wiring import Session, run
from hsops.core.errors import UsageError
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.core.errors import HsopsError
    from hsops.core.orphans import Orphan
    from hsops.core.runs import Run
    from hsops.remote.agent import Agent
    from hsops.remote.orphans import StoppedOrphan
    from hsops.remote.runs import Stopped


PARTIAL = 3


@dataclass(frozen=True, slots=True)
class How:
    """``grace``: seconds from SIGTERM to SIGKILL; ``gpu_s``: for GPU memory; ``force``: beside a lock's holder."""

    grace: float = 10.0
    gpu_s: float = 20.0
    force: bool = False


@dataclass(frozen=True, slots=True)
class _Ended:
    """What was ended on one host; ``runs``: records there that tell on which hosts else there may be something."""

    stopped: tuple[Stopped, ...]
    runs: tuple[Run, ...]


_Calls = Mapping[str, Callable[[], _Ended]]


def stop(
    ctx: typer.Context,
    server: Annotated[str, typer.Argument(metavar="SERVER", help="A server of the inventory (the default).")] = "",
    *,
    run_id: Annotated[str, typer.Option("--run", metavar="ID", help="This run, whatever its server.")] = "",
    orphan: Annotated[
        list[int] | None, typer.Option("--orphan", metavar="PID", help="A process that status calls an orphan; asks.")
    ] = None,
    grace: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="From SIGTERM to SIGKILL.")] = 10.0,
    gpu_wait: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="For GPU memory to be back.")] = 20.0,
    force: Annotated[bool, typer.Option("--force", help="At once, whoever holds the host's lock.")] = False,
) -> None:
    """Stop a server: SIGTERM, then SIGKILL for whatever is left of the run; says what was ended, and proves it.

    Exit code 7 when a process or its GPU memory is still there, 3 when one of several hosts cannot be asked.
    """
    how = How(grace, gpu_wait, force)

    def body(session: Session) -> Outcome:
        if not orphan:
            return end(session, server or None, run_id=run_id, how=how)
        if server or run_id:
            raise UsageError("--orphan PID goes with neither a server nor --run")
        return end_orphans(session, orphan, how)

    run(ctx, "stop", body)


def end(session: Session, server: str | None, *, run_id: str = "", how: How = How()) -> Outcome:
    """The command's body, for playbooks too."""
    from hsops.cli.logs import find
    from hsops.core.nodes import elsewhere

    if run_id and server:
        hosts = session.server(server).hosts
        return _end(session, {host: partial(_end_run, session, host, run_id, how) for host in hosts}, how)
    if run_id:
        agent, found = find(session, run_id)
        others = elsewhere(found, ())
        hosts = (agent.host.name, *(host for host in others if host in session.inventory.hosts))
        return _end(session, {host: partial(_end_run, session, host, found.id, how) for host in hosts}, how)
    spec = session.server(server)
    return _end(session, {host: partial(_end_server, session, host, spec.name, how) for host in spec.hosts}, how)


def end_elsewhere(session: Session, run: Run, hosts: Collection[str]) -> None:
    """End what a run that was replaced has on hosts beside these, which its server does not name any more.

    Where that fails it is told: what replaced it does not need those hosts.
    """
    from hsops.cli.rollout import ask
    from hsops.core.events import Note
    from hsops.core.nodes import elsewhere

    others = elsewhere(run, hosts)
    if not others:
        return
    calls, failed = _reachable(session, {host: [run] for host in others}, How())
    found, silent = ask(session, calls, doing="stopping on")
    for host, one in found.items():
        for stopped in one.stopped:
            left = f"; {len(stopped.left)} LEFT" if stopped.left else ""
            session.console.emit(Note(f"its part of run {run.id} was ended there too{left}", host))
    for host, error in {**failed, **silent}.items():
        said = f"its part of run {run.id} may be left there ({error.message}); hsops stop --run {run.id} ends it"
        session.console.emit(Note(said, host, "warn"))


def _end_server(session: Session, host: str, server: str, how: How) -> _Ended:
    from hsops.remote.runs import list_runs, stop_server

    newest = list_runs(session.agent(host), server, limit=1)
    with session.lock(host) as lock:
        stopped = stop_server(lock, server, **asdict(how))
    return _Ended(stopped, (*newest, *(one.run for one in stopped)))


def _end_run(session: Session, host: str, run_id: str, how: How) -> _Ended:
    """Nothing where there is nothing of it to end."""
    from hsops.remote.runs import list_runs, stop_run

    agent = session.agent(host)
    found = next((one for one in list_runs(agent, limit=1000) if one.id == run_id), None)
    if not found or not (found.alive or found.left or (found.job and not found.job.over)):
        return _Ended((), (found,) if found else ())
    with session.lock(host) as lock:
        return _Ended((stop_run(agent, run_id, lock=lock, **asdict(how)),), (found,))


def _end(session: Session, calls: _Calls, how: How) -> Outcome:
    """On all hosts side by side, then on those that only the runs' own records name."""
    from hsops.cli.rollout import ask

    failed: dict[str, HsopsError] = {}
    if len(calls) == 1:
        ((host, call),) = calls.items()
        found = {host: call()}
    else:
        found, failed = ask(session, calls, doing="stopping on")
    for error in failed.values():
        error.fix = "; ".join(filter(None, (error.fix, "what is left there is ended by the same command later")))
    beyond = _beyond(found, calls)
    more, unknown = _reachable(session, beyond, how)
    ended, silent = ask(session, more, doing="stopping on") if more else ({}, {})
    for host, error in silent.items():
        later = "; ".join(f"hsops stop --run {one.id}" for one in beyond[host])
        error.fix = "; ".join(filter(None, (error.fix, f"what is left there is ended by {later}")))
    alive = {one.run.id for some in found.values() for one in some.stopped}
    unknown = {host: error for host, error in unknown.items() if alive & {one.id for one in beyond[host]}}
    return _told({**found, **ended}, {**failed, **silent, **unknown})


def _beyond(found: Mapping[str, _Ended], asked: Collection[str]) -> dict[str, list[Run]]:
    """Hosts that were not asked, and the runs that may have a part there: the newest one, and those just ended.

    What the inventory names today is not what it named at the launch.
    """
    runs = [one for some in found.values() for one in some.runs]
    newest = max(runs, key=lambda one: one.started, default=None)
    wanted = {one.run.id for some in found.values() for one in some.stopped} | ({newest.id} if newest else set())
    seen = {(one.id, one.node.host) for one in runs if one.node}
    beyond: dict[str, list[Run]] = {}
    for one in {one.id: one for one in runs if one.id in wanted}.values():
        for host in one.node.hosts if one.node else ():
            if host not in asked and (one.id, host) not in seen:
                beyond.setdefault(host, []).append(one)
    return beyond


def _reachable(session: Session, beyond: Mapping[str, list[Run]], how: How) -> tuple[_Calls, dict[str, HsopsError]]:
    """How to end those runs on each of these hosts; and which hosts the inventory has no way to."""
    known = session.inventory.hosts
    calls = {host: partial(_end_runs, session, host, runs, how) for host, runs in beyond.items() if host in known}
    return calls, {host: several.unnamed(runs[0], host) for host, runs in beyond.items() if host not in known}


def _end_runs(session: Session, host: str, runs: list[Run], how: How) -> _Ended:
    ended = [_end_run(session, host, one.id, how) for one in runs]
    return _Ended(tuple(one for some in ended for one in some.stopped), ())


def _told(found: Mapping[str, _Ended], failed: Mapping[str, HsopsError]) -> Outcome:
    from hsops.render.stop import faults, host_lines

    rows = [(host, one) for host, some in found.items() for one in some.stopped]
    data = [{**asdict(one), "run": one.run.as_json(), "host": host} for host, one in rows]
    errors = [fault for host, one in rows for fault in faults(host, one)]
    code = 7 if errors else 0
    for error in failed.values():
        code = code or (PARTIAL if found else error.exit_code)
    left = sum(len(one.left) for _, one in rows)
    told = [*errors, *(entry for error in failed.values() for entry in error.as_json())]
    return Outcome(
        {"stopped": data, "left": left}, host_lines(rows, failed, many=len({**found, **failed}) > 1), code, tuple(told)
    )


def end_orphans(session: Session, pids: list[int], how: How) -> Outcome:
    """Show what they are, ask, and end them one by one."""
    from hsops.core.errors import ForeignError
    from hsops.core.events import Note
    from hsops.remote.orphans import orphans, stop_orphan
    from hsops.render.stop import asked_lines, orphan_lines

    hosts = session.hosts()
    if len(hosts) != 1:
        raise UsageError("a pid is of one host", fix="hsops --host NAME stop --orphan PID")
    agent = session.agent(hosts[0])
    shown: list[Orphan] = [orphans(agent, pid).found[0] for pid in dict.fromkeys(pids)]
    for line in asked_lines(agent.host.name, shown):
        session.console.emit(Note(line))
    for one in shown:
        if one.refused:
            raise ForeignError(f"pid {one.pid} is not ours to end: {one.refused}", host=agent.host.name)
    if not session.confirm(f"End {'it' if len(shown) == 1 else f'these {len(shown)}'}?"):
        return Outcome({"orphans": [one.as_json() for one in shown]}, ["nothing was ended"], 1)
    with session.lock(agent.host.name) as lock:
        stopped = [stop_orphan(lock, one, keep=one is not shown[-1], **asdict(how)) for one in shown]
    return _outcome({"orphans": [asdict(one) for one in stopped]}, stopped, orphan_lines(stopped), agent)


def _outcome(data: dict[str, Any], stopped: list[StoppedOrphan], lines: Iterator[str], agent: Agent) -> Outcome:
    from hsops.render.stop import faults

    errors = tuple(fault for one in stopped for fault in faults(agent.host.name, one))
    left = sum(len(one.left) for one in stopped)
    return Outcome({**data, "left": left}, lines, 7 if errors else 0, errors)
