"""``hsops unlock``: take a host's lock away from whoever holds it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from hsops.cli.wiring import Session, run
from hsops.render.console import Outcome


def unlock(
    ctx: typer.Context,
    check: bool = typer.Option(False, "--check", help="Only show who holds it."),
) -> None:
    """Show who holds a host's lock and, after a question, take it away: that one changes nothing more."""
    run(ctx, "unlock", lambda session: take_away(session, check=check))


def take_away(session: Session, *, check: bool = False) -> Outcome:
    """The command's body."""
    from hsops.core.events import Note
    from hsops.remote.lock import evict, holder

    rows: list[dict[str, Any]] = []
    lines, code = [], 0
    for host in session.hosts():
        shown = holder(session.agent(host))
        row: dict[str, Any] = {"host": host.name, "holder": asdict(shown) if shown else None, "evicted": False}
        rows.append(row)
        if shown is None:
            lines.append(f"{host.name}: nobody holds the lock")
            continue
        left = f"expires in {shown.expires_s:.0f} s unless it is renewed" if shown.state == "held" else "it has expired"
        said = f"{host.name}: {shown.words}; {left}"
        if check:
            lines.append(said)
            continue
        if not session.options.json:
            session.console.emit(Note(said))
        if not session.confirm("Take the lock away from it?"):
            lines.append(f"{host.name}: it keeps the lock")
            code = 1
            continue
        killed = evict(session.agent(host), shown, reason=session.options.reason)
        row |= {"evicted": True, "killed": killed}
        ended = "its process on the host was ended; " if killed else ""
        lines.append(
            f"{host.name}: unlocked; {ended}what it left half done is put right by the next hsops command there"
        )
    return Outcome({"hosts": rows}, lines, code)
