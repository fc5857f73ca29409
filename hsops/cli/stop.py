"""``hsops stop``: end a server's whole process tree and nothing else, or an orphan; with proof that it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hsops.cli.wiring import Session, run
from hsops.core.errors import UsageError
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.core.orphans import Orphan
    from hsops.remote.agent import Agent
    from hsops.remote.orphans import StoppedOrphan
    from hsops.remote.runs import Stopped


@dataclass(frozen=True, slots=True)
class How:
    """``grace``: seconds from SIGTERM to SIGKILL; ``gpu_s``: for GPU memory; ``force``: beside a lock's holder."""

    grace: float = 10.0
    gpu_s: float = 20.0
    force: bool = False


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

    Exit code 7 when a process or its GPU memory is still there.
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
    from hsops.remote.runs import stop_run, stop_server
    from hsops.render.stop import run_lines

    stopped: tuple[Stopped, ...]
    if run_id:
        agent, found = find(session, run_id)
        with session.lock(agent.host.name) as lock:
            wanted = found.alive or found.left or (found.job and not found.job.over)
            stopped = (stop_run(agent, found.id, lock=lock, **asdict(how)),) if wanted else ()
    else:
        spec = session.server(server)
        agent = session.agent(spec.host)
        with session.lock(spec.host) as lock:
            stopped = stop_server(lock, spec.name, **asdict(how))
    data = [{**asdict(one), "run": one.run.as_json()} for one in stopped]
    return _outcome({"stopped": data}, stopped, run_lines(stopped), agent)


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


def _outcome(
    data: dict[str, Any], stopped: tuple[Stopped, ...] | list[StoppedOrphan], lines: Iterator[str], agent: Agent
) -> Outcome:
    from hsops.render.stop import faults

    errors = tuple(fault for one in stopped for fault in faults(agent.host.name, one.proof, one.left))
    left = sum(len(one.left) for one in stopped)
    return Outcome({**data, "left": left}, lines, 7 if errors else 0, errors)
