"""The hosts as ``hsops status`` sees them: runs with their health, orphans, and hosts that cannot be asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hsops.core.errors import HsopsError
from hsops.core.nodes import UNKNOWN, absent, whole
from hsops.core.orphans import GPU_MEMORY, NO_LAUNCHER, NO_SUPERVISOR, Orphan
from hsops.core.runs import Run
from hsops.core.units import clock, counted
from hsops.launch.standing import Standing
from hsops.remote.orphans import Orphans
from hsops.render.console import error_lines

_WHY = {
    NO_LAUNCHER: "SGLang without its launcher",
    NO_SUPERVISOR: "of run {run}, whose supervisor is gone",
    GPU_MEMORY: "no run of hsops owns it",
}


@dataclass(frozen=True, slots=True)
class HostStatus:
    """One host: its runs, newest first, each with its standing (None: it does not run), and its orphans."""

    runs: tuple[tuple[Run, Standing | None], ...]
    orphans: Orphans


def data(found: Mapping[str, HostStatus], failed: Mapping[str, HsopsError]) -> dict[str, Any]:
    """For ``--json``: ``runs`` and ``orphans`` of all hosts, and ``hosts``: each with why it could not be asked."""
    runs = [{**run.as_json(), "host": hosts[0], **_health(standing)} for hosts, run, standing in _rows(found)]
    orphans = [{**orphan.as_json(), "host": host} for host, one in found.items() for orphan in one.orphans.found]
    hosts = {name: {"reachable": True, "gpu_unknown": one.orphans.blind} for name, one in found.items()}
    hosts |= {name: {"reachable": False, "error": error.as_json()[0]} for name, error in failed.items()}
    return {"runs": runs, "orphans": orphans, "hosts": hosts}


def lines(order: Sequence[str], found: Mapping[str, HostStatus], failed: Mapping[str, HsopsError]) -> Iterator[str]:
    """For people: the runs of all hosts, then what is wrong: hosts that could not be asked, orphans."""
    rows = _rows({host: found[host] for host in order if host in found})
    if not rows and found:
        yield "no runs"
    for on, run, standing in rows:
        yield _run_line("+".join(on), run, standing)
    for host in order:
        if host in failed:
            first, *rest = error_lines(failed[host])
            yield f"{'-':16} {host:10} CANNOT BE ASKED  {first.removeprefix(f'{host}: ')}"
            yield from rest
        else:
            yield from _of_host(host, found[host].orphans)


def _rows(found: Mapping[str, HostStatus]) -> list[tuple[tuple[str, ...], Run, Standing | None]]:
    """Each run once: its hosts, the run (the whole of one over several hosts), and how it stands."""
    rows: list[tuple[tuple[str, ...], Run, Standing | None]] = []
    seen = set[str]()
    for host, one in found.items():
        for run, standing in one.runs:
            if run.node is None:
                rows.append(((host,), run, standing))
            elif run.id not in seen:
                seen.add(run.id)
                there = {name: _run_of(found[name], run.id) for name in run.node.hosts if name in found}
                joined = whole({name: part[0] if part else None for name, part in there.items()})
                head = there.get(run.node.hosts[0])
                rows.append((run.node.hosts, joined or run, head[1] if head else None))
    return rows


def _run_of(one: HostStatus, run: str) -> tuple[Run, Standing | None] | None:
    return next((row for row in one.runs if row[0].id == run), None)


def _of_host(host: str, orphans: Orphans) -> Iterator[str]:
    if orphans.blind and not orphans.no_gpu_tool:
        yield f"note: {host}: who holds GPU memory is not known: {orphans.blind}"
    runs = [orphan.run for orphan in orphans.found if orphan.kind == NO_SUPERVISOR and not orphan.refused]
    for run in dict.fromkeys(runs):
        many = runs.count(run)
        yield (
            f"{'orphan':16} {host:10} {many} process{'es' * (many != 1)} of run {run}, whose supervisor is gone: "
            f"nobody records how they end; hsops --host {host} stop --run {run}"
        )
    others = [orphan for orphan in orphans.found if orphan.run is None or orphan.run not in runs]
    for orphan in others:
        yield orphan_line(host, orphan)
    pids = "".join(f" --orphan {orphan.pid}" for orphan in others if not orphan.refused)
    if pids:
        yield f"  hsops --host {host} stop{pids} shows what it is, asks, and ends it"


def orphan_line(host: str, orphan: Orphan) -> str:
    """``orphan  rtx8  pid 4121  2:13:05  71 GiB on GPU 3  sglang::scheduler_TP0  SGLang without its launcher``."""
    held = f"  {memory(orphan.gpu_mib)} on GPU {', '.join(orphan.gpus)}" if orphan.gpus else ""
    why = _WHY[orphan.kind].format(run=orphan.run)
    below = f", {len(orphan.below)} below it" if orphan.below else ""
    no = f"; not ours to end: {orphan.refused}" if orphan.refused else ""
    return (
        f"{'orphan':16} {host:10} pid {orphan.pid}  {orphan.user}  up {clock(orphan.age_s)}{held}  "
        f"{orphan.command[:80]}  ({why}{below}{no})"
    )


def memory(mib: float) -> str:
    """``71 GiB``, ``512 MiB``."""
    return f"{mib / 1024:.0f} GiB" if mib >= 10240 else f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def _health(standing: Standing | None) -> dict[str, Any]:
    """``health`` as one word for a run that does not run: empty."""
    told = standing.as_json() if standing else {"level": "", "health": "", "detail": "", "load": None}
    return {"health": told["health"], "level": told["level"], "health_detail": told["detail"], "load": told["load"]}


def _run_line(host: str, run: Run, standing: Standing | None) -> str:
    state = (
        f"{run.phase}, {standing}" if standing else f"{run.phase}: {run.exit}" if run.phase == "exited" else run.phase
    )
    if run.job:
        state = str(run.job) if run.pending else f"{state} ({(run.job.over and run.job.cause) or run.job})"
    if run.pending:
        return f"{run.server:16} {host:10} {run.id}  {run.phase}  {state}{_attempts(run)}"
    dead = [f"{name} {end}" for name, end in {**run.ranks, **run.helpers}.items() if end and run.alive]
    alive = sum(1 for end in run.ranks.values() if end is None) if run.alive else 0
    return (
        f"{run.server:16} {host:10} {run.id}  {state}  TP {alive}/{run.tp}  port {run.port}  "
        f"{'up' if run.alive else 'ran'} {clock(run.uptime_s)}  pid {run.pid}"
        + (f"  SGLang {run.sglang}" if run.sglang else "")
        + (f"  {_captures(run, standing)}" if run.alive and run.dump_dir else "")
        + (f"  dead: {', '.join(dead)}" if dead else "")
        + _elsewhere(run)
        + (f"  {counted(len(run.left), 'process')} left: hsops stop" if run.left else "")
        + _attempts(run)
    )


def _elsewhere(run: Run) -> str:
    """Nodes of which nothing is known, or that have nothing of a run that lives."""
    unknown = [part.host for part in run.parts if part.phase == UNKNOWN]
    lacking = absent(run) if run.alive or run.left else ()
    return (f"  not asked: {', '.join(unknown)}" if unknown else "") + (
        f"  nothing of it on {', '.join(lacking)}" if lacking else ""
    )


def _attempts(run: Run) -> str:
    """What there is to say of a server with a restart policy."""
    last = run.attempts[-1] if run.attempts else None
    before = f"  attempt {run.attempt}, the last one: {last.exit}" if last else ""
    if run.restart_at is not None:
        return f"{before}  {run.exit}; is started again"
    return before + (f"  not started again: {run.not_restarted}" if run.not_restarted else "")


def _captures(run: Run, standing: Standing | None) -> str:
    """What the ranks say of the capture; one sentence, as they must all say the same. A start is not there yet."""
    starts = standing and standing.level in ("refused", "starting")
    if starts and run.silent and all(said.ok for said in run.hellos):
        return "no word of the capture yet"
    if run.capture_fault:
        return f"CAPTURES NOTHING: {run.capture_fault}"
    said = run.hellos[0]
    final = (
        "" if said.final in ("", "none") else " and both finals" if said.final == "both" else f" and {said.final} final"
    )
    return f"captures {', '.join(map(str, said.boundaries))}{final} by {said.strategy}"
