"""``hsops status``: the runs on the hosts, how healthy they are, and the processes that nobody looks after."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from hsops.cli.wiring import Session, run
from hsops.core.parallel import PARALLEL
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.core.inventory import HostSpec
    from hsops.core.runs import Run
    from hsops.launch.standing import Standing
    from hsops.remote.agent import Agent
    from hsops.render.status import HostStatus

PARTIAL = 3


def status(
    ctx: typer.Context,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Older runs too.")] = False,
    parallel: Annotated[int, typer.Option("--parallel", metavar="N", min=1, help="Hosts at once.")] = PARALLEL,
) -> None:
    """Show the latest run of each server: phase, health, ranks, port, how long it is up; and orphaned processes."""
    run(ctx, "status", lambda session: look(session, everything=everything, parallel=parallel))


def look(session: Session, *, everything: bool = False, parallel: int = PARALLEL) -> Outcome:
    """The command's body. All hosts side by side; one that cannot be asked is a row and hides no other."""
    from hsops.cli.rollout import ask
    from hsops.render import status as render

    specs = session.hosts()
    found, failed = ask(session, {spec.name: partial(_host, session, spec, everything) for spec in specs}, parallel)
    if failed and len(specs) == 1:
        raise next(iter(failed.values()))
    data, lines = render.data(found, failed), render.lines([spec.name for spec in specs], found, failed)
    errors = tuple(entry for error in failed.values() for entry in error.as_json())
    return Outcome(data, lines, (PARTIAL if found else 1) if failed else 0, errors)


def _host(session: Session, spec: HostSpec, everything: bool) -> HostStatus:
    from hsops.core.errors import HsopsError
    from hsops.remote.orphans import Orphans, orphans
    from hsops.remote.runs import list_runs
    from hsops.render.status import HostStatus

    agent, seen = session.agent(spec), set[str]()
    rows: list[tuple[Run, Standing | None]] = []
    for found in list_runs(agent):
        if everything or found.alive or found.left or found.server not in seen:
            answers = found.alive and not found.pending and (found.node is None or found.node.rank == 0)
            rows.append((found, _standing(agent, found) if answers else None))
        seen.add(found.server)
    try:
        strays = orphans(agent)
    except HsopsError as error:  # the host told its runs a moment ago: they are worth their rows
        strays = Orphans((), f"its orphans are not known either: {error.message}", no_gpu_tool=False)
    return HostStatus(tuple(rows), strays)


def _standing(agent: Agent, found: Run) -> Standing:
    from hsops.core.errors import UnreachableError
    from hsops.launch.standing import Standing, look
    from hsops.remote.runs import log_end

    try:
        with agent.at(found).tunnel(found.port) as port:
            return look(port, found.keys.api, sglang=found.sglang, log=lambda: log_end(agent, found.id))
    except UnreachableError as error:  # the host answered a moment ago: the run is worth its row
        return Standing("refused", "cannot be asked", error.message)
