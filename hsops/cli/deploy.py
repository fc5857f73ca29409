"""``hsops deploy``: put patches into SGLang, look at them, take them out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hsops.cli.wiring import Session, run
from hsops.core.errors import ConfigError, HsopsError, PartialError, UsageError
from hsops.core.parallel import PARALLEL
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.cli import rollout
    from hsops.deploy.do import Done
    from hsops.deploy.plan import Plan
    from hsops.deploy.plan_file import Entry
    from hsops.deploy.targets import Target
    from hsops.remote.agent import Agent
    from hsops.remote.lock import Lock
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
    parallel: int = PARALLEL

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
    parallel: Annotated[int, typer.Option("--parallel", metavar="N", min=1, help="Hosts at once.")] = PARALLEL,
) -> None:
    """Put patches into a host's SGLang: plan, ask, apply. A second time it writes nothing.

    Of several hosts (--host, --group) the first is changed alone; the others begin when it went well.
    """
    wish = Wish(tuple(patches or ()), server or None, check, diff, status, revert, force, out, plan, parallel)
    run(ctx, "deploy", lambda session: put(session, wish))


def put(session: Session, wish: Wish = Wish()) -> Outcome:
    """The command's body, for playbooks too."""
    wish.check_sense()
    wish, calls = _kept(session, wish) if wish.plan else (wish, _planned(session, wish))
    for host in list(calls)[: wish.parallel]:
        session.agent(host).begin("patch-inspect", "run-list")  # the hosts' work goes on while the rest is loaded here
    from hsops.cli import rollout
    from hsops.render import deploy as render
    from hsops.render.hosts import together

    looked = rollout.look(session, calls, wish.parallel)
    rows = looked.all_rows
    if wish.status:
        return looked.outcome(render.data(rows), render.status_lines(rows))
    if wish.out and not looked.failed:
        _keep(session, rows, wish)
    shown, data = list(together(rows, with_diff=wish.diff)), render.data(rows, with_diff=wish.diff)
    needed = any(row.plan.needed for row in rows)
    if wish.check or (wish.plan and looked.failed) or not (needed or looked.failed):
        return looked.outcome(data, [*shown, *_nothing(rows, wish)])
    if needed and looked.first_answered and not _agreed(session, looked, shown, wish):
        return Outcome(data, ["nothing was changed"], 1)
    return _carry_out(session, looked, wish)


def _keep(session: Session, rows: list[Row], wish: Wish) -> None:
    """Write the plan to a file."""
    from hsops.core.events import Note
    from hsops.deploy import plan_file

    plan_file.write(
        Path(wish.out).expanduser(), [(row.host, row.plan) for row in rows], revert=wish.revert, force=wish.force
    )
    session.console.emit(Note(f"kept in {wish.out}   carry it out: hsops deploy --plan {wish.out}"))


def _kept(session: Session, wish: Wish) -> tuple[Wish, dict[str, Callable[[], list[Row]]]]:
    """The plan of a file, to be held against its hosts: all of them before any is changed."""
    from hsops.core.errors import Fault
    from hsops.deploy import plan_file

    if session.options.host or session.options.group:
        raise UsageError("--plan FILE is for the hosts that it was made for", fix="leave --host and --group out")
    kept = plan_file.read(Path(wish.plan).expanduser())
    unknown = [name for name in dict.fromkeys(e.host for e in kept.entries) if name not in session.inventory.hosts]
    if unknown:
        raise ConfigError([Fault(wish.plan, 0, 0, "", f"host {name!r} is not in the inventory") for name in unknown])
    wish = replace(wish, revert=kept.revert, force=kept.force)
    by_host = {host: list(some) for host, some in groupby(kept.entries, lambda entry: entry.host)}
    return wish, {host: partial(_still_so, session, entries, wish) for host, entries in by_host.items()}


def _still_so(session: Session, entries: list[Entry], wish: Wish) -> list[Row]:
    from hsops.deploy import do
    from hsops.render.deploy import Row

    rows = []
    for entry in entries:
        agent = session.agent(entry.host)
        do.check_fresh(agent, entry.plan)
        stale = do.stale_runs(agent, entry.plan.patch, "" if wish.revert else entry.plan.identity)
        rows.append(Row(entry.host, entry.plan, stale))
    return rows


def _planned(session: Session, wish: Wish) -> dict[str, Callable[[], list[Row]]]:
    """What makes the plans, by host. Faults of the patches' own files are told first, all of them."""
    targets = _targets(session, wish)
    own = (
        {}
        if wish.revert
        else {t.patch: p for t in targets if (p := session.inventory.patches[t.patch]).kind != "hs-dump"}
    )
    if own:
        from hsops.deploy import parts

        parts.check(list(own.values()), session.inventory_path.parent, session.inventory_fault)
    by_host = {host: list(some) for host, some in groupby(targets, lambda target: target.host.name)}
    return {host: partial(_rows_of, session, targets, wish) for host, targets in by_host.items()}


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


def _rows_of(session: Session, targets: list[Target], wish: Wish) -> list[Row]:
    rows = [row for target in targets for row in _rows(session, target, wish)]
    if len(rows) > 1:
        from hsops.deploy.plan_edits import check_together

        check_together([row.plan for row in rows])
    return rows


def _rows(session: Session, target: Target, wish: Wish) -> list[Row]:
    from hsops.deploy import do
    from hsops.render.deploy import Row

    agent = session.agent(target.host)
    try:
        plans = _reverts(session, agent, target, wish) if wish.revert else [_wanted(session, agent, target, wish)]
    except HsopsError as error:
        if not isinstance(error, ConfigError):  # that is of a file here
            error.host = error.host or target.host.name
        raise
    rows = []
    for planned in plans:
        stale = do.stale_runs(agent, target.patch, "" if wish.revert else planned.identity)
        rows.append(Row(target.host.name, planned, stale))
    return rows


def _wanted(session: Session, agent: Agent, target: Target, wish: Wish) -> Plan:
    from hsops.deploy import do, hook, payload, plan

    patch = session.inventory.patches[target.patch]
    if patch.kind != "hs-dump":
        from hsops.deploy import kinds

        local = kinds.Local(session.inventory_path.parent, session.inventory_fault)
        if wish.status:
            return kinds.status(agent, patch, local)
        return kinds.plan(agent, patch, local, force=wish.force)
    wanted = payload.build(patch)
    source = do.look(agent, target.patch, known=wanted.files.values())
    ours = do.look_hook(agent, target.patch, list(wanted.files)) if wanted.place == hook.PLACE else source
    other = source if wanted.place == hook.PLACE else do.look(agent, target.patch, hook.PLACE, ())
    if wish.status:
        where = hook.elsewhere(other, wanted.place)
        return replace(plan.status(ours, wanted), warnings=(f"it is applied in {where}",) if where else ())
    warnings = hook.check(ours) if wanted.place == hook.PLACE else []
    hook.check_other(other, target.patch, wanted.place)
    planned = plan.plan(ours, wanted, force=wish.force)
    planned = replace(planned, warnings=(*planned.warnings, *warnings))
    if not planned.needed:
        return planned
    from hsops.deploy import served

    return served.checked(planned, agent, _models(session, target), force=wish.force)


def _reverts(session: Session, agent: Agent, target: Target, wish: Wish) -> list[Plan]:
    """Out of SGLang's files and out of hsops' own folder, wherever it is; the first also when it is nowhere."""
    from hsops.deploy import do, hook, kinds, plan

    patch = session.inventory.patches.get(target.patch)
    if found := kinds.reverts(agent, target.patch, patch, force=wish.force):
        return found
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


def _agreed(session: Session, looked: rollout.Looked, shown: list[str], wish: Wish) -> bool:
    from hsops.core.events import Note

    if not session.options.json:
        for line in (*shown, *looked.failure_lines):
            session.console.emit(Note(line))
    where = f" on {len(looked.todo)} hosts, {looked.todo[0]} first" if len(looked.todo) > 1 else ""
    return session.confirm(f"Revert{where}?" if wish.revert else f"Apply{where}?")


def _carry_out(session: Session, looked: rollout.Looked, wish: Wish) -> Outcome:
    from hsops.cli import rollout
    from hsops.render import deploy as render

    aim = "absent" if wish.revert else "applied"
    rolled = rollout.change(session, looked, partial(_on_host, session, wish), aim=aim, at_most=wish.parallel)
    data = render.data(rolled.rows, with_diff=wish.diff)
    if len(looked.order) > 1 or rolled.interrupted:
        return rolled.outcome(data, _again(wish))
    if error := rolled.outcomes[0].error:
        raise error
    undo = "" if wish.revert else " ".join([UNDO, *wish.patches])  # of these, not of all that the server has
    return Outcome(data, list(render.done_lines(rolled.rows, undo=undo)))


def _on_host(session: Session, wish: Wish, rows: list[Row]) -> rollout.Changed:
    """One host's patches in their order, up to the first that fails."""
    from hsops.cli.rollout import Changed

    done = list(rows)
    todo = [i for i, row in enumerate(rows) if row.plan.needed]
    try:
        with session.lock(rows[0].host) as lock:
            for i in todo:
                done[i] = replace(rows[i], done=_change(lock, rows[i].plan, wish, keep=i != todo[-1]))
    except HsopsError as error:
        if names := ", ".join(earlier.plan.patch for earlier in done if earlier.done):
            said = f"{error.message} ({names} is done)"
            error = PartialError(said, host=error.host or rows[0].host, why=error.why, fix=error.fix)
        return Changed(tuple(done), error)
    return Changed(tuple(done))


def _again(wish: Wish) -> str:
    """The command line that does the same, without hosts."""
    words = [*wish.patches, *(["--server", wish.server] if wish.server else [])]
    flags = [f"--{name}" for name in ("revert", "force") if getattr(wish, name)]
    return " ".join(["hsops deploy", *words, *flags])


def _change(lock: Lock, plan: Plan, wish: Wish, *, keep: bool) -> Done:
    from hsops.deploy import do

    return (
        do.revert(lock, plan, force=wish.force, keep=keep)
        if wish.revert
        else do.apply(lock, plan, keep=keep, exact=bool(wish.plan))
    )


def _nothing(rows: list[Row], wish: Wish) -> list[str]:
    if any(row.plan.needed for row in rows):
        return []
    return ["nothing to revert" if wish.revert else "nothing to do: applied already"]
