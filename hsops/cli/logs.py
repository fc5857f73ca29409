"""``hsops logs``: a server's log, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from hsops.cli.wiring import Session, run
from hsops.core.errors import UsageError
from hsops.core.events import Event
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.core.runs import Run
    from hsops.remote.agent import Agent


@dataclass(frozen=True, slots=True)
class LogPiece(Event):
    """Some of the log; bytes that are not UTF-8 stand as lone surrogates."""

    text: str


def logs(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="RUN", help="A run, or a server (the default's latest run).")] = "",
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=-1, help="Only the last N lines.")] = -1,
) -> None:
    """Print the log of a run exactly as the server wrote it."""
    run(ctx, "logs", lambda session: show(session, name, follow=follow, lines=None if lines < 0 else lines))


def show(session: Session, name: str, *, follow: bool, lines: int | None) -> Outcome:
    """The command's body."""
    from hsops.remote.runs import read_log

    agent, found = find(session, name)
    for piece in read_log(agent, found.id, lines=lines, follow=follow):
        if session.options.json:
            session.console.emit(LogPiece(piece.decode("utf-8", "surrogateescape")))
        else:
            session.console.raw(piece)
        if not session.console.heard:  # `hsops logs -f | head`
            break
    return Outcome({"run": found.id, "log": found.log})


def find(session: Session, name: str) -> tuple[Agent, Run]:
    """The run that ``name`` means: its id, or the latest run of a server; "" is the default server.

    Raises:
        UsageError: there is none.
    """
    from hsops.remote.runs import list_runs

    if not name or name in session.inventory.servers:
        spec = session.server(name or None)
        agent = session.agent(spec.host)
        if found := list_runs(agent, spec.name, limit=1):
            return agent, found[0]
        raise UsageError(f"{spec.name} was never launched on {spec.host}", fix=f"hsops launch {spec.name}")
    for host in session.hosts():
        agent = session.agent(host)
        for known in list_runs(agent, limit=1000):
            if known.id == name:
                return agent, known
    raise UsageError(f"there is no run or server {name!r}", fix="hsops status --all lists the runs")
