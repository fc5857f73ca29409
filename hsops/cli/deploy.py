"""``hsops deploy``: put patches into SGLang, look at them, take them out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hsops.cli import deploy_plans
from hsops.cli.wiring import Session, run
from hsops.core.errors import HsopsError, PartialError, UsageError
from hsops.core.parallel import PARALLEL
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.cli import rollout
    from hsops.deploy.do import Done
    from hsops.deploy.planned import Plan
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
    diff: Annotated[
        bool, typer.Option("--diff", help="Show it as a unified diff too; -v: hsops' own files as well.")
    ] = False,
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
    wish, calls = deploy_plans.kept(session, wish) if wish.plan else (wish, deploy_plans.planned(session, wish))
    for host in list(calls)[: wish.parallel]:
        session.agent(host).begin("patch-inspect", "run-list")  # the hosts' work goes on while the rest is loaded here
    from hsops.cli import gatekeeper
    from hsops.render import deploy as render
    from hsops.render.hosts import together

    looked = gatekeeper.look(session, wish, calls)
    rows = looked.all_rows
    if wish.status:
        return looked.outcome(render.data(rows), render.status_lines(rows))
    if wish.out and not looked.failed:
        _keep(session, rows, wish)
    shown, data = (
        list(together(rows, with_diff=wish.diff, whole=bool(session.options.verbose))),
        render.data(rows, with_diff=wish.diff),
    )
    needed = any(row.plan.needed for row in rows)
    if wish.check or (wish.plan and looked.failed) or not (needed or looked.failed):
        return looked.outcome(data, [*shown, *_nothing(rows, wish)])
    if needed and looked.first_answered and not _agreed(session, looked, shown, wish):
        return Outcome(data, ["nothing was changed"], 1)
    return _carry_out(session, looked, wish)


def _keep(session: Session, rows: list[Row], wish: Wish) -> None:
    """Write the plan to a file."""
    from hsops.core.events import Note
    from hsops.core.files import output_file
    from hsops.deploy import plan_file

    path = output_file(Path(wish.out).expanduser(), "--out")  # it is replaced: a pipe or a link would be gone
    plan_file.write(path, [(row.host, row.plan) for row in rows], revert=wish.revert, force=wish.force)
    session.console.emit(Note(f"kept in {wish.out}   carry it out: hsops deploy --plan {wish.out}"))


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
    rolled = rollout.change(session, looked, partial(_on_host, session, wish, looked), aim=aim, at_most=wish.parallel)
    data = render.data(rolled.rows, with_diff=wish.diff)
    if len(looked.order) > 1 or rolled.interrupted:
        return rolled.outcome(data, partial(_again, session, wish, rolled.rows))
    if error := rolled.outcomes[0].error:
        raise error
    undo = "" if wish.revert else _undo(session, wish, rolled.rows)
    return Outcome(data, list(render.done_lines(rolled.rows, undo=undo)))


def _on_host(session: Session, wish: Wish, looked: rollout.Looked, rows: list[Row]) -> rollout.Changed:
    """One host's patches in their order, up to the first that fails."""
    from hsops.cli import gatekeeper
    from hsops.cli.rollout import Changed

    done, ours = list(rows), set[str]()
    try:
        rows = gatekeeper.tried(session, wish, looked, rows)
        done = list(rows)
        todo = [i for i, row in enumerate(rows) if row.plan.needed]
        with session.lock(rows[0].host) as lock:
            for i, after in zip(todo, [*(rows[later].plan for later in todo[1:]), None], strict=True):
                change = _change(lock, rows[i].plan, wish, after, ours=ours)
                done[i] = replace(rows[i], done=change)
                ours.update(map(rows[i].plan.seen.real, change.changed))
    except HsopsError as error:
        if names := ", ".join(earlier.plan.patch for earlier in done if earlier.done):
            said = f"{error.message} ({names} is done)"
            error = PartialError(said, host=error.host or rows[0].host, why=error.why, fix=error.fix)
        return Changed(tuple(done), error)
    return Changed(tuple(done))


def _undo(session: Session, wish: Wish, rows: list[Row]) -> str:
    """The command line that takes out what was put into one host: no patch that was there before, no other host's."""
    done = dict.fromkeys(row.plan.patch for row in rows if row.done)
    all_of_it = not wish.plan and not wish.patches and all(row.done for row in rows)
    where = [f"--host {rows[0].host}"] if wish.plan or _by_host(session, wish) else []
    where = [f"--server {wish.server}"] if wish.server else where
    return " ".join([UNDO, *([] if all_of_it else done), *where])


def _again(session: Session, wish: Wish, rows: list[Row], hosts: list[str]) -> str:
    """The command lines that do the rest on ``hosts``: where no patch was named, those of each host."""
    flags = [f"--{name}" for name in ("revert", "force") if getattr(wish, name)]
    together: dict[tuple[str, ...], list[str]] = {}
    for host in hosts:
        left = dict.fromkeys(r.plan.patch for r in rows if r.host == host and r.plan.needed and not r.done)
        named = wish.patches or (() if _by_host(session, wish) else tuple(left))
        together.setdefault(named, []).append(host)
    lines = [["hsops deploy", *named, *flags, *(f"--host {host}" for host in some)] for named, some in together.items()]
    return " && ".join(map(" ".join, lines))


def _by_host(session: Session, wish: Wish) -> bool:
    """The command line names the hosts."""
    return not wish.server and bool(session.options.host or session.options.group)


def _change(lock: Lock, plan: Plan, wish: Wish, after: Plan | None, *, ours: set[str]) -> Done:
    """Carry it out; ``after``: the plan that comes next, for which the lock is kept."""
    from hsops.deploy import do

    if wish.revert:
        return do.revert(lock, plan, force=wish.force, keep=bool(after), ours=ours)
    coming = do.size(after) if after else 0
    return do.apply(lock, plan, keep=bool(after), coming=coming, exact=bool(wish.plan), ours=ours)


def _nothing(rows: list[Row], wish: Wish) -> list[str]:
    if any(row.plan.needed for row in rows):
        return []
    return ["nothing to revert" if wish.revert else "nothing to do: applied already"]
