"""``hsops logs``: a server's log, byte for byte; some of its lines; or what went wrong in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from hsops.cli import several
from hsops.cli.wiring import Session, run
from hsops.core.errors import HsopsError, PartialError, UsageError
from hsops.core.events import Event, Note
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.core.log_summary import LogSummary
    from hsops.core.runs import Run
    from hsops.remote.agent import Agent
    from hsops.remote.log import LogCut

_RANK = re.compile(r"(?:TP)?(\d+)\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LogPiece(Event):
    """Some of the log; bytes that are not UTF-8 stand as lone surrogates."""

    text: str


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for.

    Args:
        follow: go on until the run has ended.
        lines: only the last so many; None for all.
        rank: ``TP1``; ``main``; empty for all.
        since: a duration or a time; empty for all.
        errors: only what went wrong.
        attempt: of a server that was started again; None for the last one.
    """

    follow: bool = False
    lines: int | None = None
    rank: str = ""
    since: str = ""
    errors: bool = False
    attempt: int | None = None

    def check_sense(self) -> None:
        """Options that go together.

        Raises:
            UsageError: they do not.
        """
        if self.errors and (self.follow or self.rank or self.since or self.lines is not None):
            raise UsageError("--errors reads the whole log; it goes with no other option of logs")
        if self.lines is not None and (self.rank or self.since):
            raise UsageError("--lines counts all lines; it goes with neither --rank nor --since")


def logs(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="RUN", help="A run, or a server (the default's latest run).")] = "",
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", metavar="N", min=0, help="Only the last N lines.")
    ] = None,
    rank: Annotated[str, typer.Option(metavar="RANK", help="Only this rank's lines: 1 or TP1; main for none's.")] = "",
    since: Annotated[str, typer.Option(metavar="TIME", help="Only from 10m ago on, or from '2026-11-29 17:40'.")] = "",
    errors: Annotated[bool, typer.Option("--errors", help="Only what went wrong, the cause first.")] = False,
    attempt: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of a restarted server: this attempt, not the last.")
    ] = 0,
) -> None:
    """Print the log of a run exactly as the server wrote it, but for API keys, or a part of it."""
    wish = Wish(follow, lines, rank, since, errors, attempt or None)
    run(ctx, "logs", lambda session: show(session, name, wish))


def show(session: Session, name: str, wish: Wish = Wish()) -> Outcome:
    """The command's body."""
    from hsops.remote.log import LogCut

    wish.check_sense()
    agent, found = find(session, name)
    if wish.errors and found.node:
        return _told(found, *several.logs_of(session, agent, found))
    if wish.errors:
        return _errors(session, agent, found, wish)
    agent, found = _with_rank(session, agent, found, wish.rank)
    for piece in _pieces(session, agent, found, wish):
        if isinstance(piece, LogCut):
            session.console.emit(Note(str(piece), agent.host.name, "warn"))
        elif piece and session.options.json:
            session.console.emit(LogPiece(piece.decode("utf-8", "surrogateescape")))
        elif piece:
            session.console.raw(piece)
        if not session.console.heard:  # `hsops logs -f | head`
            break
    return Outcome({"run": found.id, "log": found.log})


def find(session: Session, name: str) -> tuple[Agent, Run]:
    """The run that ``name`` means: its id, or the latest run of a server; "" is the default server.

    Of a server over several hosts the part on the first one, or on the one of ``--host``.

    Raises:
        UsageError: there is none.
    """
    from hsops.remote.runs import list_runs

    if not name or name in session.inventory.servers:
        spec = session.server(name or None)
        named = session.options.host or session.options.group
        on = [one.name for one in session.hosts() if one.name in spec.hosts] if named else []
        where = on[0] if on else spec.host
        agent = session.agent(where)
        if found := list_runs(agent, spec.name, limit=1):
            return agent, found[0]
        raise UsageError(f"{spec.name} was never launched on {where}", fix=f"hsops launch {spec.name}")
    for host in session.hosts():
        agent = session.agent(host)
        for known in list_runs(agent, limit=1000):
            if known.id == name:
                return agent, known
    raise UsageError(f"there is no run or server {name!r}", fix="hsops status --all lists the runs")


def _pieces(session: Session, agent: Agent, found: Run, wish: Wish) -> Iterator[bytes | LogCut]:
    """What is wanted of the log, without keys; a cut ends what was held back for the rest of its line."""
    from hsops.core.log_filter import LogFilter
    from hsops.core.log_mask import LogMask

    mask = LogMask((found.keys.api, found.keys.admin))
    some = LogFilter(rank=_rank(wish.rank, found), since=_since(agent, wish.since))
    pick = some.feed if wish.rank or wish.since else lambda data: iter((data,))
    for piece in chain(_whole(session, agent, found, wish), [None]):
        if isinstance(piece, bytes):
            yield from pick(mask.feed(piece))
        else:
            yield from pick(mask.tail())
            yield some.tail()
            if piece:
                yield piece


def _whole(session: Session, agent: Agent, found: Run, wish: Wish) -> Iterator[bytes | LogCut]:
    from hsops.remote.log import follow_log

    def lost(error: HsopsError, wait: float) -> None:
        said = f"{error.message}; trying again in {wait:g} s, from the same byte on"
        session.console.emit(Note(said, agent.host.name, "warn"))

    return follow_log(agent, found.id, lines=wish.lines, follow=wish.follow, attempt=wish.attempt, lost=lost)


def _with_rank(session: Session, agent: Agent, found: Run, text: str) -> tuple[Agent, Run]:
    """The part of the run that has this rank: it may be on another of its hosts."""
    from hsops.remote.runs import list_runs

    name = _rank(text, found) or ""
    if not found.node or not name or name in found.node.own:
        return agent, found
    host = found.node.hosts[int(name.removeprefix("TP")) // found.node.ranks]
    agent = several.agent_on(session, host, found)
    part = next((one for one in list_runs(agent, found.server, limit=1000) if one.id == found.id), None)
    if part is None:
        raise several.nothing_of(found, host)
    return agent, part


def _rank(text: str, found: Run) -> str | None:
    """``TP1`` of ``1`` or ``tp1``, the main process of ``main``."""
    from hsops.core.log_lines import MAIN

    if not text:
        return None
    match = _RANK.match(text)
    if text != "main" and not (match and int(match.group(1)) < found.tp):
        raise UsageError(f"--rank {text}: run {found.id} has TP0 to TP{found.tp - 1}, and main")
    return f"TP{int(match.group(1))}" if match else MAIN


def _since(agent: Agent, text: str) -> float | None:
    """By the log's stamps, which are in the host's time zone."""
    from datetime import datetime, timezone

    from hsops.core.units import duration

    if not text:
        return None
    if (seconds := duration(text)) is not None:
        clock = agent.call("clock")
        return float(clock["time"] + clock["utc_offset"] - seconds)
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:  # a zone would be thrown away: the log's stamps have none
            return time.replace(tzinfo=timezone.utc).timestamp()
        raise ValueError
    except ValueError:
        raise UsageError(
            f"--since {text!r} is neither a duration nor a time of the host without a zone",
            fix="--since 10m, or --since '2026-11-29 17:40'",
        ) from None


def _errors(session: Session, agent: Agent, found: Run, wish: Wish) -> Outcome:
    """What went wrong, the first cause across all ranks on top."""
    from hsops.core.milestones import LogReader

    reader = LogReader(tp=found.tp, sglang=found.sglang)
    for piece in _pieces(session, agent, found, wish):
        if isinstance(piece, bytes):
            reader.feed(piece)
    return _told(found, reader.summary(), {})


def _told(found: Run, summary: LogSummary, unread: Mapping[str, HsopsError]) -> Outcome:
    from hsops.render import console
    from hsops.render.logs import error_lines

    cause = summary.cause
    rest = [error for error in summary.errors if error is not cause]
    data = {"run": found.id, "log": found.log, "cause": asdict(cause) if cause else None,
            "errors": [asdict(error) for error in summary.errors]}  # fmt: skip
    lacks = [line for error in unread.values() for line in console.error_lines(error)]
    errors = tuple(entry for error in unread.values() for entry in error.as_json())
    lines = (*error_lines(cause, rest, summary.lines), *lacks)
    return Outcome(data, lines, PartialError.exit_code if unread else 0, errors)
