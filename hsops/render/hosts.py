"""Several hosts at once: the board while they work, equal plans as one, the table at the end."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hsops.deploy.facts import Seen
from hsops.deploy.hosts import HostEnded, HostOutcome, HostsBoard, unfinished
from hsops.deploy.planned import Plan
from hsops.render.console import error_lines
from hsops.render.deploy import Row, plan_lines
from hsops.render.describe import describe
from hsops.render.paint import columns

_SHOWN = 12  # of a board: it must fit a terminal


@describe.register
def _(event: HostsBoard) -> Iterable[str]:
    waits = "; Ctrl-C: no other host begins, those under way end" if event.stopping else ""
    yield f"{event.doing} {event.total} hosts · {event.ended} done{waits}"
    for host, seconds in event.under_way[:_SHOWN]:
        yield f"  {host:16} {seconds:.0f} s"
    for host, why in event.failed[:_SHOWN]:
        yield f"  {host:16} failed: {why}"


@describe.register
def _(event: HostEnded) -> Iterable[str]:
    yield f"{event.host}: {_happened(event.outcome, event.before, event.after, event.seconds, event.error)}"


def together(rows: Sequence[Row], *, with_diff: bool = False, whole: bool = False) -> Iterator[str]:
    """The plans; hosts of which all plans are equal are shown as one."""
    by_host: dict[str, list[Row]] = {}
    for row in rows:
        by_host.setdefault(row.host, []).append(row)
    groups: list[list[str]] = []
    for host, some in by_host.items():
        same = next((group for group in groups if _plans(by_host[group[0]]) == _plans(some)), None)
        if same:
            same.append(host)
        else:
            groups.append([host])
    for group in groups:
        if len(group) == 1:
            yield from plan_lines(by_host[group[0]], with_diff=with_diff, whole=whole)
            continue
        yield from textwrap.wrap(
            f"{len(group)} hosts, the same plan: {', '.join(group)}", columns(118), subsequent_indent="  "
        )
        shown = [replace(row, host=f"{len(group)} hosts", seen=()) for row in by_host[group[0]]]
        yield from plan_lines(shown, with_diff=with_diff, whole=whole)
        yield from (f"  warning: {host}: {text}" for host in group for row in by_host[host] for text in row.warnings)


def table(outcomes: Sequence[HostOutcome], again: str, *, interrupted: bool = False) -> Iterator[str]:
    """A line a host, what failed and why, and how to finish the rest.

    Args:
        again: the command that finishes the rest; empty when nothing is left.
        interrupted: by Ctrl-C.
    """
    wide = max(4, *(len(one.host) for one in outcomes))
    states = max(15, *(len(_states(one)) for one in outcomes))
    yield f"{'host':{wide}}  {'before -> after':{states}}  seconds"
    for one in outcomes:
        took = f"{one.seconds:7.1f}" if one.seconds else f"{'-':>7}"
        yield f"{one.host:{wide}}  {_states(one):{states}}  {took}  {_NOTES[one.word]}".rstrip()
    for one in outcomes:
        if one.error:
            yield from error_lines(one.error)
    first = next((one for one in outcomes if one.error), None)
    if interrupted:
        yield "interrupted"
    elif first and any(one.word == "not-begun" for one in outcomes):
        yield f"{first.host} goes first and failed: the hosts after it were not touched"
    if again:
        left = len(unfinished(outcomes))
        yield f"{len(outcomes) - left} of {len(outcomes)} hosts are as they should be   the rest: {again}"


def entries(outcomes: Sequence[HostOutcome]) -> list[dict[str, Any]]:
    """The table for ``--json``."""
    return [
        {
            "host": one.host,
            "outcome": one.word,
            "before": one.before,
            "after": one.after,
            "seconds": round(one.seconds, 3),
            "error": one.error.as_json()[0] if one.error else None,
        }
        for one in outcomes
    ]


_NOTES = {
    "changed": "",
    "unchanged": "nothing to do",
    "failed": "FAILED, see below",
    "not-begun": "not begun",
    "under-way": "left under way: the next hsops command there undoes what is half done",
}


def _plans(rows: Sequence[Row]) -> list[Plan]:
    """What is shown of them: what a plan rests on is each host's own."""
    return [replace(row.plan, seen=Seen()) for row in rows]


def _states(one: HostOutcome) -> str:
    return one.before if one.before == one.after else f"{one.before} -> {one.after}"


def _happened(word: str, before: str, after: str, seconds: float, error: str) -> str:
    if word == "failed":
        return f"failed after {seconds:.1f} s: {error}"
    return f"{before} -> {after} in {seconds:.1f} s" if word == "changed" else word
