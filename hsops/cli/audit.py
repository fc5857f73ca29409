"""``hsops audit``: who changed the hosts, and when."""

from __future__ import annotations

import typer

from hsops.cli.wiring import Session, run
from hsops.render.console import Outcome


def audit(
    ctx: typer.Context,
    *,
    limit: int = typer.Option(20, "--limit", "-n", metavar="N", min=1, max=10000, help="The last N changes."),
    verify: bool = typer.Option(False, "--verify", help="Walk the whole chain; exit 1 where a line was tampered with."),
) -> None:
    """Show who deployed, reverted, launched, stopped and unlocked on the hosts: a log whose lines are chained."""
    run(ctx, "audit", lambda session: look(session, limit=limit, verify=verify))


def look(session: Session, *, limit: int, verify: bool) -> Outcome:
    """The command's body."""
    from hsops.core.errors import BadDataError
    from hsops.remote.audit import read_audit
    from hsops.render import audit as render

    found = {host.name: read_audit(session.agent(host), limit=limit, verify=verify) for host in session.hosts()}
    data = {
        host: {
            "lines": list(one.lines),
            "total": one.total,
            "faults": [{"line": line, "what": what} for line, what in one.faults],
        }
        for host, one in found.items()
    }
    lines = [line for host, one in found.items() for line in render.lines(host, one, verified=verify)]
    broken = [host for host, one in found.items() if one.faults]
    errors = [
        BadDataError(
            f"the audit log was tampered with, or lost lines: {found[host].faults[0][1]}",
            host=host,
            why="it cannot be relied on from there on",
            fix=f"compare it with a copy: {session.inventory.hosts[host].state_dir}/audit.jsonl",
        )
        for host in broken
    ]
    return Outcome({"hosts": data}, lines, 1 if broken else 0, tuple(e for error in errors for e in error.as_json()))
