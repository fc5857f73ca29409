"""Plans of a deploy and what came of them, for people and machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hsops.core.units import counted, size
from hsops.deploy.do import Done
from hsops.deploy.payload import PACKAGE
from hsops.deploy.planned import Action, Plan
from hsops.deploy.stale import StaleRun

WIDTH = 58


@dataclass(frozen=True, slots=True)
class Row:
    """One patch on one host.

    Args:
        host: its name.
        plan: what was planned there.
        seen: servers that run there with another version loaded, when it was looked at.
        done: what was carried out; None: nothing was.
    """

    host: str
    plan: Plan
    seen: tuple[StaleRun, ...] = ()
    done: Done | None = None

    @property
    def stale(self) -> tuple[StaleRun, ...]:
        """Servers that run with another version loaded: after the change, where there was one."""
        return self.done.stale if self.done else self.seen

    @property
    def warnings(self) -> tuple[str, ...]:
        """About servers that run there."""
        return tuple(map(str, self.stale))


def data(rows: list[Row], *, with_diff: bool = False) -> dict[str, Any]:
    """For ``--json``: ``changes`` is how many files change, or changed, in all."""
    return {"changes": sum(row.plan.changes for row in rows), "patches": [_entry(row, with_diff) for row in rows]}


def plan_lines(rows: list[Row], *, with_diff: bool = False, whole: bool = False) -> Iterator[str]:
    """What would be done; ``whole``: the diff also of hsops' own files."""
    for row in rows:
        yield _title(row)
        yield from _actions(row.plan)
        if row.plan.untried:
            yield "  script  runs there on a copy once the first host has it"
        yield from (f"  warning: {text}" for text in (*row.plan.warnings, *row.warnings))
        if with_diff:
            yield from row.plan.diff(whole=whole)


def done_lines(rows: list[Row], *, undo: str = "") -> Iterator[str]:
    """What was done."""
    for row in rows:
        if row.done is None:
            continue
        word = "applied" if undo else "reverted"
        if row.done.already:
            yield f"{row.host} · {row.plan.patch} {row.plan.identity}: somebody else applied the same at the same time"
            continue
        line = f"{row.host} · {row.plan.patch} {row.plan.identity} {word} in {row.done.seconds:.1f} s"
        yield f"{line:<{WIDTH}} undo: {undo}" if undo else line
        yield from (f"  warning: {text}" for text in row.warnings)
        if row.done.left:
            yield f"  left: {', '.join(row.done.left)} (something else lies in there)"


def status_lines(rows: list[Row]) -> Iterator[str]:
    """How each patch stands."""
    for row in rows:
        yield _title(row)
        yield from (f"  warning: {text}" for text in (*row.plan.warnings, *row.warnings))


def _entry(row: Row, with_diff: bool) -> dict[str, Any]:
    plan = row.plan
    entry = {
        "host": row.host,
        "patch": plan.patch,
        "kind": plan.kind,
        "state": plan.state,
        "reason": plan.reason,
        "identity": plan.identity,
        "options": plan.options,
        "sglang": plan.sglang,
        "changes": plan.changes,
        "actions": [{"kind": a.kind, "path": a.path, "bytes": len(a.after or b"")} for a in plan.actions],
        "warnings": [*plan.warnings, *row.warnings],
        "stale_runs": [asdict(run) for run in row.stale],
        "untried": plan.untried,
        "done": row.done is not None,
    }
    if row.done:
        entry |= {"seconds": round(row.done.seconds, 3), "left": list(row.done.left)}
    if with_diff:
        entry["diff"] = "\n".join(plan.diff())
    return entry


def _title(row: Row) -> str:
    plan = row.plan
    state = plan.state + (f": {plan.reason}" if plan.reason else "")
    where = plan.place if plan.place.startswith(("/", "~")) else f"SGLang {plan.sglang or '?'}"
    return f"{row.host} · {plan.patch} {plan.identity or '-'} · {where} · {state}"


def _actions(plan: Plan) -> Iterator[str]:
    place = {"hook": "<state_dir>/hook", "source": "site-packages", "site": "site-packages"}.get(plan.place, plan.place)
    inside: dict[tuple[str, str], list[Action]] = {}  # with method: hook each identity has a folder of its own
    for action in plan.actions:
        folder, package, _ = action.path.rpartition(f"{PACKAGE}/")
        if package:
            inside.setdefault((action.kind, folder + package), []).append(action)
    for (kind, folder), some in inside.items():
        total = sum(len(action.after or action.before or b"") for action in some)
        yield _line(kind, f"{place}/{folder}", f"{counted(len(some), 'file')}, {size(total)}")
    for action in plan.actions:
        if f"{PACKAGE}/" not in action.path:
            yield _line(action.kind, f"{place}/{action.path}", _note(action))


def _note(action: Action) -> str:
    if action.note:
        return action.note
    before, after = (action.before or b"").count(b"\n"), (action.after or b"").count(b"\n")
    if action.kind == "append":
        return f"{after - before} lines, inert unless SGLANG_HS_DUMP_DIR is set"
    return "without the stanza" if action.kind == "restore" else f"{before} -> {after} lines"


def _line(kind: str, where: str, note: str) -> str:
    return f"  {kind:<7} {where:<{WIDTH - 10}} {note}"
