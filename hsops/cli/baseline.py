"""``hsops baseline``: what good runs of a server looked like, and where another run leaves their way."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hsops.cli import logs, several
from hsops.cli.help import Command, Group
from hsops.cli.options import everywhere
from hsops.cli.wiring import Session, run
from hsops.core.errors import HsopsError, UsageError
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.core.baseline import Baseline, GoodRun
    from hsops.core.runs import Run
    from hsops.remote.agent import Agent

app = typer.Typer(
    cls=Group, no_args_is_help=True, help="Good runs of a server: recorded by launch --wait-healthy, compared here."
)
_RECORD = "hsops launch --wait-healthy records one"

Server = Annotated[str, typer.Argument(metavar="SERVER", help="A server of the inventory (the default).")]


def list_(ctx: typer.Context, server: Server = "") -> None:
    """List the baselines of a server: SGLang, model, ranks, patches, flags; good runs, lines and time of each."""
    run(ctx, "baseline list", lambda session: listed(session, server))


def show(
    ctx: typer.Context,
    server: Server = "",
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Which one: see list (the newest).")] = "",
) -> None:
    """Show one baseline: what was launched, and lines and seconds at each milestone."""
    run(ctx, "baseline show", lambda session: shown(session, server, key))


def compare(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A run, or a server: its latest run (of the default).")
    ] = "",
    to: Annotated[
        str, typer.Option("--to", metavar="KEY|RUN", help="A baseline or one good run (what was launched alike).")
    ] = "",
) -> None:
    """Compare a run's log with good runs: the first line of each rank that is unlike theirs."""
    run(ctx, "baseline compare", lambda session: compared(session, name, to))


def listed(session: Session, server: str) -> Outcome:
    """The body of ``list``."""
    from hsops.render.baseline import list_data, list_lines

    _, baseline = _baseline(session, server)
    return Outcome({"server": baseline.server, "baselines": list_data(baseline)}, list_lines(baseline))


def shown(session: Session, server: str, key: str) -> Outcome:
    """The body of ``show``."""
    from hsops.render.baseline import show_data, show_lines

    _, baseline = _baseline(session, server)
    one = _chosen(baseline, key)
    return Outcome(show_data(one), show_lines(one))


def compared(session: Session, name: str, to: str) -> Outcome:
    """The body of ``compare``."""
    from hsops.core.divergence import divergences
    from hsops.core.launched import launched
    from hsops.remote.runs import read_baseline
    from hsops.render.baseline import compare_lines

    agent, found = logs.find(session, name)
    own = launched(found)
    baseline = read_baseline(agent, found.server)
    good = [one for one in _good(baseline, own.key, to) if one.run != found.id]
    if not good:
        raise _nothing(baseline, found)
    summary = several.summary_of(session, agent, found)
    told = divergences(summary.kinds, [one.kinds for one in good], until=summary.ready_line)
    differs = list(own.differences(good[0].launched)) if good[0].launched else []
    data: dict[str, Any] = {
        "run": found.id,
        "lines": summary.lines - summary.probe_lines,
        "stage": summary.stage,
        "to": {"key": good[0].key, "runs": [one.run for one in good], "differs": differs},
        "divergences": [asdict(one) for one in told],
    }
    return Outcome(data, compare_lines(found, summary, good, differs, told))


def _baseline(session: Session, server: str) -> tuple[Agent, Baseline]:
    from hsops.remote.runs import read_baseline

    spec = session.server(server or None)
    agent = session.agent(spec.host)
    return agent, read_baseline(agent, spec.name)


def _chosen(baseline: Baseline, key: str) -> Baseline:
    """The runs of one key, of the newest without one."""
    from hsops.core.baseline import Baseline

    if not baseline.runs:
        raise HsopsError(f"no good run of {baseline.server} is known", fix=_RECORD)
    runs = [one for one in baseline.runs if one.key == (key or baseline.runs[0].key)]
    if not runs:
        raise UsageError(
            f"{baseline.server} has no baseline {key!r}", fix=f"keys: {', '.join(filter(None, baseline.keys))}"
        )
    return Baseline(baseline.server, tuple(runs))


def _good(baseline: Baseline, key: str, to: str) -> tuple[GoodRun, ...]:
    """The runs to compare with: those that ``to`` names; else those launched alike, else the newest key's."""
    known = [one for one in baseline.runs if one.kinds]
    if to:
        runs = tuple(one for one in known if to in (one.key, one.run))
        if not runs:
            raise UsageError(f"{baseline.server} has no baseline and no good run {to!r}", fix="hsops baseline list")
        return runs
    alike = tuple(one for one in known if one.key == key)
    return alike or tuple(one for one in known if one.key == known[0].key)


def _nothing(baseline: Baseline, found: Run) -> HsopsError:
    why = "it is the only one that is remembered" if any(one.run == found.id for one in baseline.runs) else ""
    return HsopsError(
        f"there is no other good run of {baseline.server} to compare {found.id} with", why=why, fix=_RECORD
    )


for command, body in (("list", list_), ("show", show), ("compare", compare)):
    app.command(command, cls=Command)(everywhere(body))
