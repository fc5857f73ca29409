"""``hsops stop``: end a server's whole process tree, and nothing else."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from hsops.cli.wiring import Session, run
from hsops.render.console import Outcome


def stop(
    ctx: typer.Context,
    server: Annotated[str, typer.Argument(metavar="SERVER", help="A server of the inventory (the default).")] = "",
    *,
    run_id: Annotated[str, typer.Option("--run", metavar="ID", help="This run, whatever its server.")] = "",
    grace: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="From SIGTERM to SIGKILL.")] = 10.0,
    force: Annotated[bool, typer.Option("--force", help="At once, whoever holds the host's lock.")] = False,
) -> None:
    """Stop a server: SIGTERM, then SIGKILL for whatever is left of the run; says what was ended."""
    run(ctx, "stop", lambda session: end(session, server or None, run_id=run_id, grace=grace, force=force))


def end(session: Session, server: str | None, *, run_id: str = "", grace: float = 10.0, force: bool = False) -> Outcome:
    """The command's body, for playbooks too."""
    from hsops.cli.logs import find
    from hsops.remote.runs import list_runs, stop_run
    from hsops.render.launch import stopped_lines

    if run_id:
        agent, found = find(session, run_id)
        wanted = [found] if found.alive or found.left else []
    else:
        spec = session.server(server)
        agent = session.agent(spec.host)
        wanted = [found for found in list_runs(agent, spec.name) if found.alive or found.left]
    with session.lock(agent.host.name) as lock:
        last = wanted[-1:]
        stopped = [stop_run(agent, run.id, grace=grace, lock=lock, keep=[run] != last, force=force) for run in wanted]
    left = sum(len(one.left) for one in stopped)
    data = {"stopped": [{**asdict(one), "run": one.run.as_json()} for one in stopped], "left": left}
    if not left:
        return Outcome(data, stopped_lines(stopped))
    error = {"type": "UnhealthyError", "message": f"{left} processes are still there", "host": agent.host.name}
    return Outcome(data, stopped_lines(stopped), exit_code=7, errors=(error,))
