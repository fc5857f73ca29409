"""Of several hosts one runs a script first, though only on a copy: no other runs it before that one has the patch.

With ``--check``, where nobody gets it: before it went well there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hsops.cli import deploy_plans, rollout
from hsops.core.errors import StalePlanError

if TYPE_CHECKING:
    from hsops.cli.deploy import Wish
    from hsops.cli.rollout import Looked
    from hsops.cli.wiring import Session
    from hsops.render.deploy import Row


def look(session: Session, wish: Wish, calls: Mapping[str, Callable[[], list[Row]]]) -> Looked:
    """Look at all hosts; scripts are tried on the first one that needs them, and with ``--check`` then on the others.

    Args:
        calls: by host; of several hosts they leave scripts untried.
    """
    looked = rollout.look(session, calls, wish.parallel)
    waiting = [host for host in looked.order if any(row.plan.untried for row in looked.rows.get(host, ()))]
    if not waiting or wish.status or not (wish.check or looked.first_answered):
        return looked
    looked = replace(looked, gate=waiting[0])
    for hosts in (waiting[:1], waiting[1:] if wish.check else []):
        if waiting[0] in looked.failed:
            break
        again = {host: partial(_tried, session, wish, looked.rows[host]) for host in hosts}
        looked = rollout.look_again(session, looked, again, wish.parallel)
    return looked


def tried(session: Session, wish: Wish, looked: Looked, rows: list[Row]) -> list[Row]:
    """One host's rows, when its turn has come to be changed: with what its scripts did there on a copy.

    Raises:
        StalePlanError: that is not what the user saw and agreed to.
        HsopsError: a script failed; two patches change one file.
    """
    if not any(row.plan.untried for row in rows):
        return rows
    now = _tried(session, wish, rows)
    shown = {row.plan.patch: _made(row) for row in looked.rows[looked.gate] if row.plan.edits}
    for before, row in zip(rows, now, strict=True):
        patch, gate = row.plan.patch, looked.gate
        if before.plan.untried and _made(row) != shown.get(patch) and not session.options.yes:
            raise StalePlanError(
                f"{patch} does something else here than on {gate}, of which it was shown"
                if patch in shown
                else f"what {patch} does was not shown: {gate}, where scripts ran first, has it already or is not to",
                host=row.host,
                why="nobody has seen it; nothing was changed here",
                fix=f"look, and agree: hsops deploy {patch} --host {row.host} --diff",
            )
    return now


def _made(row: Row) -> list[tuple[str, bytes | None, int]]:
    """What lies there in the end; what lay there before may differ from host to host."""
    return [(edit.path, edit.content, edit.mode) for edit in row.plan.edits]


def _tried(session: Session, wish: Wish, rows: list[Row] | tuple[Row, ...]) -> list[Row]:
    now = [deploy_plans.try_script(session, row, wish) if row.plan.untried else row for row in rows]
    deploy_plans.check_together(now)
    return now
