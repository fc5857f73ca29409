"""A launch, runs, and what stop did, as lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hsops.core.runs import Run
from hsops.launch import events
from hsops.launch.paste import pasted
from hsops.launch.plan import Plan
from hsops.launch.wait import Healthy, Stalled
from hsops.remote.runs import Stopped
from hsops.render.describe import describe
from hsops.render.progress import clock


@describe.register
def _(event: events.RunFollowed) -> Iterable[str]:
    profile = f" · nccl {event.nccl}" if event.nccl else ""
    how = "started" if event.fresh else "picked up"
    yield (
        f"{event.server} on {event.host} · run {event.run} {how} · TP {event.tp} · port {event.port} · pid {event.pid}"
        f"{profile} · Ctrl-C leaves, the server stays"
    )


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
    yield f"on {plan.host}, as hsops would start it:"
    yield from pasted(plan).splitlines()


def healthy_lines(found: Healthy) -> Iterator[str]:
    """After a launch that went well."""
    yield f"healthy after {clock(found.seconds)} · run {found.run.id} · port {found.run.port}   next: hsops extract"


def stalled_lines(found: Stalled) -> Iterator[str]:
    """After a launch that stands still."""
    usual = f" (usual step: {clock(found.usual_s)})" if found.usual_s is not None else ""
    due = found.summary.next
    where = f"next would be '{due.id}'" if due else "the log says ready, but /health does not answer"
    yield (
        f"stalled  no milestone, log line, read, page fault, memory or JIT cache change, compiler or new function "
        f"for {clock(found.silent_s)}{usual}; {where}"
    )


def run_lines(rows: list[tuple[str, Run, str]]) -> Iterator[str]:
    """``status``: (host, run, health) a line."""
    if not rows:
        yield "no runs"
    for host, run, health in rows:
        ended = f"{run.phase}: {run.exit}" if run.phase == "exited" else run.phase
        state = f"{run.phase}, {health}" if health else ended
        dead = [f"{name} {end}" for name, end in {**run.ranks, **run.helpers}.items() if end and run.alive]
        alive = sum(1 for end in run.ranks.values() if end is None) if run.alive else 0
        yield (
            f"{run.server:16} {host:10} {run.id}  {state}  TP {alive}/{run.tp}  port {run.port}  "
            f"{'up' if run.alive else 'ran'} {clock(run.uptime_s)}  pid {run.pid}"
            + (f"  SGLang {run.sglang}" if run.sglang else "")
            + (f"  {_captures(run)}" if run.alive and run.dump_dir else "")
            + (f"  dead: {', '.join(dead)}" if dead else "")
            + (f"  {len(run.left)} processes left: hsops stop" if run.left else "")
            + _attempts(run)
        )


def _attempts(run: Run) -> str:
    """What there is to say of a server with a restart policy."""
    last = run.attempts[-1] if run.attempts else None
    before = f"  attempt {run.attempt}, the last one: {last.exit}" if last else ""
    if run.restart_at is not None:
        return f"{before}  {run.exit}; is started again"
    return before + (f"  not started again: {run.not_restarted}" if run.not_restarted else "")


def _captures(run: Run) -> str:
    """What the ranks say of the capture; one sentence, as they must all say the same."""
    if run.capture_fault:
        return f"CAPTURES NOTHING: {run.capture_fault}"
    said = run.hellos[0]
    final = f" and {said.final} final" if said.final not in ("", "none") else ""
    return f"captures {', '.join(map(str, said.boundaries))}{final} by {said.strategy}"


def stopped_lines(stopped: list[Stopped]) -> Iterator[str]:
    """What ``stop`` ended, and what it could not."""
    if not stopped:
        yield "nothing is running"
    for one in stopped:
        yield f"{one.run.server}: run {one.run.id} stopped in {one.seconds:.1f} s, {len(one.ended)} processes ended"
        if one.beside:
            yield f"  beside: {one.beside}"
        for row in one.ended:
            yield f"  {row['pid']:>8}  {row['by']:4}  {row['command']}"
        for row in one.left:
            yield f"  {row['pid']:>8}  LEFT  {row['command']} (state {row['state']})"


def _to_go(seconds: float | None) -> str:
    return f" · about {clock(seconds)} to healthy" if seconds else ""


_HEALTH = {
    "refused": "refused (normal until 'http server')",
    "starting": "not ready (503, normal until the warm-up is over)",
    "up": "200",
    "answers": "200, and it completes",
    "stable": "200, stable",
}
