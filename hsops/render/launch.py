"""A launch, as lines for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from hsops.core.units import clock
from hsops.launch import events
from hsops.launch.paste import pasted, submitted
from hsops.launch.plan import Plan
from hsops.launch.queue import Queued
from hsops.launch.wait import Healthy, Stalled
from hsops.render.describe import describe


@describe.register
def _(event: events.RunFollowed) -> Iterable[str]:
    profile = f" · nccl {event.nccl}" if event.nccl else ""
    how = "started" if event.fresh else "picked up"
    yield (
        f"{event.server} on {event.host} · run {event.run} {how} · TP {event.tp} · port {event.port} · pid {event.pid}"
        f"{profile} · Ctrl-C leaves, the server stays"
    )


@describe.register
def _(event: Queued) -> Iterable[str]:
    starts = (
        f", about {time.strftime('%m-%d %H:%M', time.localtime(event.starts))}" if event.starts and event.place else ""
    )
    yield f"  in the queue  {event.words}{starts}"


@describe.register
def _(event: events.StageDone) -> Iterable[str]:
    at = clock(event.seconds) if event.seconds is not None else "-:--"
    usual = f"   usual {clock(event.usual_s)}" if event.usual_s is not None else ""
    yield f"  {at:>6}  {event.stage}{usual}"


@describe.register
def _(event: events.HealthChanged) -> Iterable[str]:
    yield f"          /health {_HEALTH.get(event.level, event.level)}{f': {event.detail}' if event.detail else ''}"


@describe.register
def _(event: events.CaptureSaid) -> Iterable[str]:
    who = f"TP{event.rank}" if event.rank is not None else "a process"
    if not event.captures:
        yield f"  capture: {who} refuses: {event.reason}"


@describe.register
def _(event: events.Waiting) -> Iterable[str]:
    waits = f" (waiting for {', '.join(event.missing)})" if event.missing else ""
    quiet = f"nothing moved for {clock(event.silent_s)}, stalled at {clock(event.limit_s)}"
    state = quiet if event.silent_s >= 5 else "at work"
    yield f"          still '{event.stage}'{waits} · {state} · log {event.lines:,} lines{_to_go(event.remaining_s)}"
    for sentence in event.doing:
        yield f"          {sentence}"


@describe.register
def _(event: events.Matrix) -> Iterable[str]:
    width = max(4, *(len(rank) + 1 for rank in event.ranks))
    ranks = event.ranks[:16]
    yield f"{'':20}" + "".join(f"{rank:>{width}}" for rank in ranks) + "    took   usual"
    for row in event.rows:
        cells = "".join(f"{cell:>{width}}" for cell in row.cells[:16])
        took = clock(row.took_s) if row.took_s is not None else ""
        usual = clock(row.usual_s) if row.usual_s is not None else ""
        yield f"  {row.stage:18}{cells}{took:>8}{usual:>8}   {row.note}".rstrip()
    silent = f" · quiet for {clock(event.silent_s)}" if event.silent_s > 10 else ""
    yield (
        f"  {clock(event.elapsed_s)} · log {event.lines:,} lines · /health {_HEALTH.get(event.health, event.health)}"
        f"{silent}{_to_go(event.remaining_s)}"
    )
    for sentence in event.doing:
        yield f"  {sentence}"


def plan_lines(plan: Plan) -> Iterator[str]:
    """``--check``: the exact command and environment."""
    yield f"{plan.server} on {plan.host} · spec {plan.spec_hash}" + (
        f" · SGLang {plan.deployed.sglang}" if plan.deployed.sglang else ""
    )
    for name, identity in plan.deployed.patches.items():
        yield f"  patch {name} {identity}"
    for note in plan.notes:
        yield f"  {note}"
    env = plan.command.env
    width = max((len(f"{name}={value}") for name, value in env.items()), default=0)
    for name, value in sorted(env.items()):
        yield f"  {f'{name}={value}':{min(width, 60)}}  {plan.origins.get(name, '')}".rstrip()
    if plan.job:
        yield f"submitted on {plan.host}: {submitted(plan.job)}"
    yield f"{'in the job' if plan.job else f'on {plan.host}'}, as hsops would start it:"
    yield from pasted(plan).splitlines()
    for lack in plan.deployed.lacks:
        yield f"launch will refuse: {lack['message']}   {lack['fix']}"


def healthy_lines(found: Healthy) -> Iterator[str]:
    """After a launch that went well."""
    then = "   next: hsops extract" if found.run.patches else "   without a patch: nothing is captured"
    yield f"healthy after {clock(found.seconds)} · run {found.run.id} · port {found.run.port}{then}"


def stalled_lines(found: Stalled) -> Iterator[str]:
    """After a launch that stands still."""
    known = found.usual_s is not None
    usual = f"usual for this step {clock(max(1.0, found.usual_s or 0.0))}" if known else "no good run is known"
    due = found.summary.next
    where = f"next: '{due.id}'" if due else "the log says ready, but /health does not answer"
    yield (
        f"stalled  nothing moved for {clock(found.silent_s)} (log, disk, memory, compilers, stacks); {usual}; {where}"
    )


def _to_go(seconds: float | None) -> str:
    return f" · about {clock(seconds)} to healthy" if seconds and seconds >= 1 else ""


_HEALTH = {
    "refused": "refused (normal until 'http server')",
    "starting": "not ready (503, normal until the warm-up is over)",
    "up": "200",
    "answers": "200, and it completes",
    "stable": "200, stable",
}
