"""What ``hsops deploy`` would do: the plans of a command line, or of a plan file, by host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from hsops.cli.wiring import Session
from hsops.core.errors import ConfigError, HsopsError, UsageError

if TYPE_CHECKING:
    from hsops.cli.deploy import Wish
    from hsops.core.inventory import PatchSpec
    from hsops.deploy.plan_file import Entry
    from hsops.deploy.planned import Plan
    from hsops.deploy.targets import Target
    from hsops.remote.agent import Agent
    from hsops.render.deploy import Row


def kept(session: Session, wish: Wish) -> tuple[Wish, dict[str, Callable[[], list[Row]]]]:
    """The plan of a file, to be held against its hosts: all of them before any is changed."""
    from hsops.core.errors import Fault
    from hsops.deploy import plan_file

    if session.options.host or session.options.group:
        raise UsageError("--plan FILE is for the hosts that it was made for", fix="leave --host and --group out")
    held = plan_file.read(Path(wish.plan).expanduser())
    unknown = [name for name in dict.fromkeys(e.host for e in held.entries) if name not in session.inventory.hosts]
    if unknown:
        raise ConfigError([Fault(wish.plan, 0, 0, "", f"host {name!r} is not in the inventory") for name in unknown])
    wish = replace(wish, revert=held.revert, force=held.force)
    by_host = {host: list(some) for host, some in groupby(held.entries, lambda entry: entry.host)}
    return wish, {host: partial(_still_so, session, entries, wish) for host, entries in by_host.items()}


def _still_so(session: Session, entries: list[Entry], wish: Wish) -> list[Row]:
    from hsops.deploy import do

    rows = []
    for entry in entries:
        agent = session.agent(entry.host)
        do.check_fresh(agent, entry.plan)
        rows.append(_row(agent, entry.host, entry.plan, wish))
    return rows


def planned(session: Session, wish: Wish) -> dict[str, Callable[[], list[Row]]]:
    """What makes the plans, by host. Faults of the patches' own files are told first, all of them.

    Of several hosts a script is not run yet: see ``gatekeeper``.
    """
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
    alone = len(by_host) == 1
    return {host: partial(_rows_of, session, targets, wish, scripts=alone) for host, targets in by_host.items()}


def try_script(session: Session, row: Row, wish: Wish) -> Row:
    """The row of a script that was not run there yet, when it was."""
    agent = session.agent(row.host)
    plan = _own(session, agent, session.inventory.patches[row.plan.patch], wish)
    return _row(agent, row.host, plan, wish)


def check_together(rows: list[Row]) -> None:
    """No two of one host's patches change one file. Raises as ``plan_edits.check_together``."""
    if len(rows) > 1:
        from hsops.deploy import plan_edits

        plan_edits.check_together([row.plan for row in rows])


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


def _rows_of(session: Session, targets: list[Target], wish: Wish, *, scripts: bool) -> list[Row]:
    rows = [row for target in targets for row in _rows(session, target, wish, scripts=scripts)]
    check_together(rows)
    return rows


def _rows(session: Session, target: Target, wish: Wish, *, scripts: bool) -> list[Row]:
    agent = session.agent(target.host)
    try:
        if wish.revert:
            plans = _reverts(session, agent, target, wish)
        else:
            plans = [_wanted(session, agent, target, wish, scripts=scripts)]
    except HsopsError as error:
        if not isinstance(error, ConfigError):  # that is of a file here
            error.host = error.host or target.host.name
        raise
    return [_row(agent, target.host.name, one, wish) for one in plans]


def _row(agent: Agent, host: str, plan: Plan, wish: Wish) -> Row:
    from hsops.deploy import do
    from hsops.deploy.stale import stale_runs
    from hsops.render.deploy import Row

    checked = plan.needed and not plan.untried and not wish.status
    if checked:
        do.expect_check(agent, plan)
    stale = stale_runs(agent, plan, revert=wish.revert)
    if checked:
        do.check(agent, plan)
    return Row(host, plan, stale)


def _own(session: Session, agent: Agent, patch: PatchSpec, wish: Wish, *, scripts: bool = True) -> Plan:
    """Of a patch of any kind but hs-dump."""
    from hsops.deploy import kinds

    local = kinds.Local(session.inventory_path.parent, session.inventory_fault)
    if wish.status:
        return kinds.status(agent, patch, local)
    return kinds.plan(session.lock(agent.host.name), patch, local, force=wish.force, scripts=scripts)


def _wanted(session: Session, agent: Agent, target: Target, wish: Wish, *, scripts: bool) -> Plan:
    from hsops.deploy import do, hook, payload, plan

    patch = session.inventory.patches[target.patch]
    if patch.kind != "hs-dump":
        return _own(session, agent, patch, wish, scripts=scripts)
    wanted = payload.build(patch)
    if wanted.place == "source":
        do.expect(agent, target.patch, wanted.files.values())
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
    return {one.name: one.model for one in servers if target.host.name in one.hosts and target.patch in one.patches}
