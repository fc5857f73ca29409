"""``hsops deploy``: put patches into SGLang, look at them, take them out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hsops.cli.wiring import Session, run
from hsops.core.errors import HsopsError, PartialError, UsageError
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.deploy.do import Done
    from hsops.deploy.plan import Plan
    from hsops.deploy.targets import Target
    from hsops.remote.agent import Agent
    from hsops.render.deploy import Row

UNDO = "hsops deploy --revert"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for."""

    patches: tuple[str, ...] = ()
    server: str | None = None
    check: bool = False
    diff: bool = False
    status: bool = False
    revert: bool = False
    force: bool = False
    out: str = ""
    plan: str = ""

    def check_sense(self) -> None:
        """Options that go together.

        Raises:
            UsageError: they do not.
        """
        if self.status and (self.check or self.diff or self.revert or self.force):
            raise UsageError("--status only looks; it goes with no other option of deploy")
        if self.out and not self.check:
            raise UsageError("--out keeps what --check shows", fix="hsops deploy --check --out FILE")
        if self.plan and (self.patches or self.server or self.status or self.revert or self.force or self.out):
            raise UsageError(
                "--plan FILE carries out that plan and nothing else",
                fix="only --check, --diff and the options of every command go with it",
            )


def deploy(
    ctx: typer.Context,
    patches: Annotated[
        list[str] | None, typer.Argument(metavar="PATCH", help="Patches of the inventory (those of the server).")
    ] = None,
    *,
    server: Annotated[str, typer.Option("--server", "-s", metavar="NAME", help="Whose patches (the default).")] = "",
    check: Annotated[bool, typer.Option("--check", help="Only show what would change.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show it as a unified diff too.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Show how the patches stand on the hosts.")] = False,
    revert: Annotated[bool, typer.Option("--revert", help="Bring back what was there, byte for byte.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also over what somebody edited since.")] = False,
    out: Annotated[str, typer.Option(metavar="FILE", help="With --check: keep the plan, for --plan.")] = "",
    plan: Annotated[
        str, typer.Option(metavar="FILE", help="Carry out exactly this plan, or refuse when the host changed since.")
    ] = "",
) -> None:
    """Put patches into a host's SGLang: plan, ask, apply. A second time it writes nothing."""
    wish = Wish(tuple(patches or ()), server or None, check, diff, status, revert, force, out, plan)
    run(ctx, "deploy", lambda session: put(session, wish))


def put(session: Session, wish: Wish = Wish()) -> Outcome:
    """The command's body, for playbooks too."""
    from hsops.render import deploy as render

    wish.check_sense()
    if wish.plan:
        wish, rows = _kept(session, wish)
    else:
        rows = [row for target in _targets(session, wish) for row in _rows(session, target, wish)]
    if wish.status:
        return Outcome(render.data(rows), list(render.status_lines(rows)))
    if wish.out:
        _keep(session, rows, wish)
    shown = list(render.plan_lines(rows, with_diff=wish.diff))
    if wish.check or not any(row.plan.needed for row in rows):
        return Outcome(render.data(rows, with_diff=wish.diff), [*shown, *_nothing(rows, wish)])
    if not _agreed(session, shown, wish):
        return Outcome(render.data(rows, with_diff=wish.diff), ["nothing was changed"], 1)
    done = _carry_out(session, rows, wish)
    return Outcome(
        render.data(done, with_diff=wish.diff), list(render.done_lines(done, undo="" if wish.revert else UNDO))
    )


def _keep(session: Session, rows: list[Row], wish: Wish) -> None:
    """Write the plan to a file."""
    from hsops.core.events import Note
    from hsops.deploy import plan_file

    plan_file.write(
        Path(wish.out).expanduser(), [(row.host, row.plan) for row in rows], revert=wish.revert, force=wish.force
    )
    session.console.emit(Note(f"kept in {wish.out}   carry it out: hsops deploy --plan {wish.out}"))


def _kept(session: Session, wish: Wish) -> tuple[Wish, list[Row]]:
    """The plan of a file, held against its hosts: all of them before any is changed."""
    from hsops.core.errors import ConfigError, Fault
    from hsops.deploy import do, plan_file
    from hsops.render.deploy import Row

    if session.options.host or session.options.group:
        raise UsageError("--plan FILE is for the hosts that it was made for", fix="leave --host and --group out")
    kept = plan_file.read(Path(wish.plan).expanduser())
    unknown = [name for name in dict.fromkeys(e.host for e in kept.entries) if name not in session.inventory.hosts]
    if unknown:
        raise ConfigError([Fault(wish.plan, 0, 0, "", f"host {name!r} is not in the inventory") for name in unknown])
    wish = replace(wish, revert=kept.revert, force=kept.force)
    rows = []
    for entry in kept.entries:
        agent = session.agent(entry.host)
        do.check_fresh(agent, entry.plan)
        warnings = do.stale_runs(agent, entry.plan.patch, "" if kept.revert else entry.plan.identity)
        rows.append(Row(entry.host, entry.plan, tuple(warnings)))
    return wish, rows


def _targets(session: Session, wish: Wish) -> list[Target]:
    from hsops.deploy.targets import targets

    named = not wish.server and (session.options.host or session.options.group)
    return targets(
        session.inventory,
        wish.patches,
        server=None if named else session.server(wish.server),
        hosts=session.hosts() if named else (),
        known_only=not wish.revert,
    )


def _rows(session: Session, target: Target, wish: Wish) -> list[Row]:
    from hsops.deploy import do
    from hsops.render.deploy import Row

    agent = session.agent(target.host)
    try:
        plans = _reverts(agent, target, wish) if wish.revert else [_wanted(session, agent, target, wish)]
    except HsopsError as error:
        error.host = error.host or target.host.name
        raise
    rows = []
    for planned in plans:
        warnings = do.stale_runs(agent, target.patch, "" if wish.revert else planned.identity)
        rows.append(Row(target.host.name, planned, tuple(warnings)))
    return rows


def _wanted(session: Session, agent: Agent, target: Target, wish: Wish) -> Plan:
    from hsops.deploy import do, hook, payload, plan, served

    wanted = payload.build(session.inventory.patches[target.patch])
    source = do.look(agent, target.patch)
    ours = do.look_hook(agent, target.patch, list(wanted.files)) if wanted.place == hook.PLACE else source
    other = source if wanted.place == hook.PLACE else do.look(agent, target.patch, hook.PLACE, ())
    if wish.status:
        where = hook.elsewhere(other, wanted.place)
        return replace(plan.status(ours, wanted), warnings=(f"it is applied in {where}",) if where else ())
    warnings = hook.check(ours) if wanted.place == hook.PLACE else []
    hook.check_other(other, target.patch, wanted.place)
    planned = plan.plan(ours, wanted, force=wish.force)
    planned = replace(planned, warnings=(*planned.warnings, *warnings))
    return served.checked(planned, agent, _models(session, target), force=wish.force) if planned.needed else planned


def _reverts(agent: Agent, target: Target, wish: Wish) -> list[Plan]:
    """Out of SGLang's files and out of hsops' own folder, wherever it is; the first also when it is nowhere."""
    from hsops.deploy import do, hook, plan

    own = do.look_hook(agent, target.patch)
    there = [plan.plan_revert(own, target.patch, force=wish.force, place=hook.PLACE)] if own.recorded.files else []
    source = do.look(agent, target.patch)
    if source.recorded.files or not there:
        there.insert(0, plan.plan_revert(source, target.patch, force=wish.force))
    return there


def _models(session: Session, target: Target) -> dict[str, str]:
    """The models of the host's servers that have the patch, by server."""
    servers = session.inventory.servers.values()
    return {one.name: one.model for one in servers if one.host == target.host.name and target.patch in one.patches}


def _agreed(session: Session, shown: list[str], wish: Wish) -> bool:
    from hsops.core.events import Note

    if not session.options.json:
        for line in shown:
            session.console.emit(Note(line))
    return session.confirm("Revert?" if wish.revert else "Apply?")


def _carry_out(session: Session, rows: list[Row], wish: Wish) -> list[Row]:
    done: list[Row] = []
    for row in rows:
        if not row.plan.needed:
            done.append(row)
            continue
        agent = session.agent(row.host)
        try:
            changed = _change(agent, row.plan, wish)
        except HsopsError as error:
            if any(earlier.done for earlier in done):
                names = ", ".join(earlier.host for earlier in done if earlier.done)
                raise PartialError(
                    f"{error.message} (done on {names})", host=error.host or row.host, why=error.why, fix=error.fix
                ) from None
            raise
        done.append(replace(row, done=changed))
    return done


def _change(agent: Agent, plan: Plan, wish: Wish) -> Done:
    from hsops.deploy import do

    return do.revert(agent, plan, force=wish.force) if wish.revert else do.apply(agent, plan)


def _nothing(rows: list[Row], wish: Wish) -> list[str]:
    if any(row.plan.needed for row in rows):
        return []
    return ["nothing to revert" if wish.revert else "nothing to do: applied already"]
