"""``hsops status``: the runs on the hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hsops.cli.wiring import Session, run
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.core.runs import Run
    from hsops.remote.agent import Agent


def status(
    ctx: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="Older runs too.")] = False,
) -> None:
    """Show the latest run of each server: phase, health, ranks, port, how long it is up."""
    run(ctx, "status", lambda session: look(session, everything=everything))


def look(session: Session, *, everything: bool = False) -> Outcome:
    """The command's body."""
    from hsops.remote.runs import list_runs
    from hsops.render.launch import run_lines

    rows: list[tuple[str, Run, str]] = []
    for host in session.hosts():
        agent, seen = session.agent(host), set[str]()
        for found in list_runs(agent):
            if everything or found.alive or found.left or found.server not in seen:
                rows.append((host.name, found, _health(agent, found)))
            seen.add(found.server)
    data = [{**found.as_json(), "host": host, "health": health} for host, found, health in rows]
    return Outcome({"runs": data}, run_lines(rows))


def _health(agent: Agent, found: Run) -> str:
    from hsops.launch.health import ask, connect

    if not found.alive:
        return ""
    with agent.tunnel(found.port) as port, connect(port, "") as client:
        client.timeout = 5.0
        status = ask(client, "/health").status
    return {200: "healthy", 0: "port closed", -1: "no answer in 5 s", 503: "not ready"}.get(status, f"HTTP {status}")
