"""The hosts of a deploy: all looked at side by side; the first changed alone, then the rest side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hsops.cli.wiring import Session, ours
from hsops.core.errors import HsopsError, UnreachableError
from hsops.core.events import Note
from hsops.core.parallel import PARALLEL, End, Watch, spread
from hsops.deploy.hosts import HostOutcome, HostsBoard, Word, ended, exit_code, unfinished
from hsops.render import hosts as render
from hsops.render.console import Outcome, error_lines

if TYPE_CHECKING:
    from hsops.render.deploy import Row

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Changed:
    """What was done on one host: its rows, and why it stopped, if it did."""

    rows: tuple[Row, ...]
    error: HsopsError | None = None


@dataclass(frozen=True, slots=True)
class Looked:
    """All hosts: the rows of those that could be looked at, why the others could not.

    Args:
        order: the hosts.
        rows, failed: by host; each host is in one of them.
        gate: the host whose turn to run scripts is before all others; empty: no script is to be run.
    """

    order: tuple[str, ...]
    rows: dict[str, tuple[Row, ...]]
    failed: dict[str, HsopsError]
    gate: str = ""

    @property
    def first_answered(self) -> bool:
        """The first host could be looked at, and so could the one that runs scripts first."""
        return self.order[0] in self.rows and (self.gate or self.order[0]) in self.rows

    @property
    def todo(self) -> list[str]:
        """The hosts where there is something to do."""
        return [host for host, rows in self.rows.items() if any(row.plan.needed for row in rows)]

    @property
    def all_rows(self) -> list[Row]:
        """Of all hosts."""
        return [row for rows in self.rows.values() for row in rows]

    @property
    def failure_lines(self) -> list[str]:
        """For people."""
        return [line for error in self.failed.values() for line in error_lines(error)]

    def outcome(self, data: dict[str, Any], lines: Iterable[str]) -> Outcome:
        """Of a command that only looks; the first failure gives the exit code."""
        failed = list(self.failed.values())
        errors = tuple(entry for error in failed for entry in error.as_json())
        return Outcome(data, [*lines, *self.failure_lines], failed[0].exit_code if failed else 0, errors)


@dataclass(frozen=True, slots=True)
class Rolled:
    """What became of all hosts."""

    outcomes: tuple[HostOutcome, ...]
    rows: list[Row]
    interrupted: bool

    def outcome(self, data: dict[str, Any], again: Callable[[list[str]], str]) -> Outcome:
        """The command's outcome. ``again``: the command line that finishes the rest, of its hosts."""
        code = exit_code(self.outcomes, interrupted=self.interrupted)
        left = unfinished(self.outcomes)
        errors = [entry for one in self.outcomes if one.error for entry in one.error.as_json()]
        if self.interrupted:
            errors.append({"type": "Interrupted", "message": "interrupted"})
        lines = list(render.table(self.outcomes, again(left) if left else "", interrupted=self.interrupted))
        lines += [f"warning: {row.host}: {text}" for row in self.rows if row.done for text in row.warnings]
        return Outcome({**data, "hosts": render.entries(self.outcomes)}, lines, code, tuple(errors))


def look(session: Session, calls: Mapping[str, Callable[[], list[Row]]], at_most: int) -> Looked:
    """Look at all hosts. The only one there is raises what is wrong with it. Arguments: as of ``ask``."""
    found, failed = ask(session, calls, at_most)
    if failed and len(calls) == 1:
        raise next(iter(failed.values()))
    return Looked(tuple(calls), {host: tuple(rows) for host, rows in found.items()}, failed)


def look_again(session: Session, looked: Looked, calls: Mapping[str, Callable[[], list[Row]]], at_most: int) -> Looked:
    """The same with some hosts looked at once more. Arguments: as of ``ask``."""
    found, wrong = ask(session, calls, at_most)
    rows, failed = looked.rows | {host: tuple(some) for host, some in found.items()}, looked.failed | wrong
    return replace(
        looked,
        rows={host: rows[host] for host in looked.order if host not in failed},
        failed={host: failed[host] for host in looked.order if host in failed},
    )


def ask(
    session: Session, calls: Mapping[str, Callable[[], T]], at_most: int = PARALLEL, *, doing: str = "looking at"
) -> tuple[dict[str, T], dict[str, HsopsError]]:
    """Ask all hosts side by side something that Ctrl-C may leave: the answers, and why there is none; in their order.

    Args:
        calls: by host.
        at_most: hosts at once.
        doing: what is told meanwhile.
    """
    for host in calls:
        session.agent(host)  # here, not in a thread: the session keeps it
    found = spread(calls, at_most=at_most, watch=_Board(session, doing, len(calls)) if len(calls) > 1 else None)
    failed = {host: _ours(session, found.ended[host]) for host in calls if found.ended[host].error}
    for host, error in failed.items():
        error.host = error.host or host
    return {host: cast(T, found.ended[host].value) for host in calls if host not in failed}, failed


def change(session: Session, looked: Looked, do: Callable[[list[Row]], Changed], *, aim: str, at_most: int) -> Rolled:
    """Change the hosts that need it.

    The first of them goes alone, then the one that runs scripts first, and the rest begin only if that went well.
    Nothing is begun when the very first host could not even be looked at.

    Args:
        looked: all hosts.
        do: changes one host; raises nothing that it can report.
        aim: the state of a patch afterwards.
        at_most: hosts at once.
    """
    todo, rows = looked.todo if looked.first_answered else [], dict(looked.rows)
    results, interrupted = dict[str, HostOutcome](), False
    watch = _Changes(session, len(todo), looked.rows, aim) if len(looked.order) > 1 else _Quiet(session)
    leaders = [host for host in todo if host in (todo[0], looked.gate)]
    for group in (*([host] for host in leaders), [host for host in todo if host not in leaders]):
        if interrupted or any(one.error for one in results.values()):
            break
        calls = {host: partial(do, list(rows[host])) for host in group}
        found = spread(calls, at_most=at_most, watch=watch, patient=True)
        interrupted = found.interrupted
        for host, end in found.ended.items():
            results[host] = _judged(session, host, looked.rows[host], aim, end)
            rows[host] = end.value.rows if end.value else rows[host]
        results |= {host: HostOutcome(host, "under-way", _states(rows[host]), "?") for host in found.under_way}
    outcomes = tuple(results.get(host) or _untouched(host, looked) for host in looked.order)
    return Rolled(outcomes, [row for some in rows.values() for row in some], interrupted)


class _Quiet(Watch[Any]):
    """Says only that Ctrl-C was heard."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def interrupted(self, under_way: tuple[str, ...]) -> None:
        names = ", ".join(under_way) or "nobody"
        self.session.console.emit(
            Note(f"Ctrl-C: no other host begins; waiting for {names} to end (Ctrl-C again leaves it)", level="warn")
        )


class _Board(_Quiet):
    """Keeps the board of a terminal."""

    def __init__(self, session: Session, doing: str, total: int) -> None:
        super().__init__(session)
        self.doing, self.total, self.count = doing, total, 0
        self.running, self.failed, self.stopping = dict[str, float](), list[tuple[str, str]](), False

    def begun(self, key: str) -> None:
        self.running[key] = time.monotonic()
        self.waiting()

    def ended(self, key: str, end: End[Any]) -> None:
        del self.running[key]
        self.count += 1
        if error := end.error or getattr(end.value, "error", None):
            self.failed.append((key, str(error)))
        self.waiting()

    def waiting(self) -> None:
        now = time.monotonic()
        under_way = tuple((host, now - since) for host, since in self.running.items())
        board = HostsBoard(self.doing, self.total, self.count, under_way, tuple(self.failed), self.stopping)
        self.session.console.emit(board)

    def interrupted(self, under_way: tuple[str, ...]) -> None:
        self.stopping = True
        super().interrupted(under_way)
        self.waiting()


class _Changes(_Board):
    """Tells the end of each host's change too."""

    def __init__(self, session: Session, total: int, rows: Mapping[str, tuple[Row, ...]], aim: str) -> None:
        super().__init__(session, "changing", total)
        self.rows, self.aim = rows, aim

    def ended(self, key: str, end: End[Any]) -> None:
        self.session.console.emit(ended(_judged(self.session, key, self.rows[key], self.aim, end)))
        super().ended(key, end)


def _judged(session: Session, host: str, before: tuple[Row, ...], aim: str, end: End[Changed]) -> HostOutcome:
    after = end.value.rows if end.value else before
    error = _ours(session, end) if end.error else end.value.error if end.value else None
    if error:
        error.host = error.host or host
    lost = "?" if isinstance(error, UnreachableError) else ""
    word: Word = "failed" if error else "changed"
    return HostOutcome(host, word, _states(before), _states(after, aim, lost), end.seconds, error)


def _untouched(host: str, looked: Looked) -> HostOutcome:
    if host in looked.failed:
        return HostOutcome(host, "failed", "?", "?", error=looked.failed[host])
    states = _states(looked.rows[host])
    return HostOutcome(host, "not-begun" if host in looked.todo else "unchanged", states, states)


def _states(rows: Sequence[Row], aim: str = "", lost: str = "") -> str:
    """The state of each patch; one word when all are the same.

    Args:
        aim: of one whose change is done.
        lost: of one whose change was not heard to end; empty: as before.
    """
    states = [aim if row.done else (lost if row.plan.needed else "") or row.plan.state for row in rows]
    if len(set(states)) == 1:
        return states[0]
    return ", ".join(f"{row.plan.patch} {state}" for row, state in zip(rows, states, strict=True))


def _ours(session: Session, end: End[Any]) -> HsopsError:
    assert end.error
    if session.options.verbose and not isinstance(end.error, HsopsError):
        raise end.error
    return ours(end.error)
