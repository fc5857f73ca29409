"""Of the evidence as lines for people: who is there, what the ranks are about, where they stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hsops.diagnose import stack_tree
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.log_text import cut
from hsops.diagnose.processes import SPARSE, Process
from hsops.diagnose.verdict import Finding
from hsops.diagnose.waits import native, state_of

_BRANCHES = 12
_THREADS, _BUSY = 3, 20.0  # of those that use at least so much of a core, in percent


def processes(ev: Evidence) -> Iterator[Finding]:
    """Who is there, in which state, at how much CPU; who is missing."""
    if not ev.live:
        return
    rows = [*ev.ranks.values(), *(p for p in (ev.launcher, ev.detokenizer) if p)]
    parts = [_alike(group) for group in _groups(rows)]
    parts += [f"{p.label} dead{f' ({p.ended})' if p.ended else ''}" for p in ev.dead]
    parts += [f"TP{rank} is missing" for rank in (ev.missing if ev.alive else ())]
    children = sum(p.role == "child" for p in ev.processes)
    if children:
        parts.append(f"{children} children that have no title yet")
    if ev.compilers:
        parts.append(f"compilers: {', '.join(ev.compilers)}")
    orphans = [str(p.pid) for p in ev.processes if p.orphan and not p.dead]
    if orphans:
        parts.append(f"outside the server's tree: {', '.join(orphans)}")
    yield Finding("processes", "; ".join(parts) or "none of this server")


def threads(ev: Evidence) -> Iterator[Finding]:
    """What the ranks' main threads are about, and what they ask of the kernel."""
    for group in _by_trace(list(ev.ranks.values())):
        yield from _thread(group)
    workers = [p for p in (ev.launcher, ev.detokenizer) if p and (p.busy or p.stopped)]
    for process in workers:
        yield Finding("threads", f"{process.label}: {state_of(process)}")


def _thread(group: list[Process]) -> Iterator[Finding]:
    first, words = group[0], state_of(group[0])
    text = f"{_names(group)}: {words}" if words else f"{_names(group)}"
    if first.trace:
        rate = max(p.trace.rate for p in group if p.trace)
        top = first.trace.top[0] if first.trace.top else None
        text += f", {rate:,.0f} system calls/s in the main thread (an idle scheduler makes thousands)"
        if top:
            text += f", mostly {top[0]} on {top[1]}" if top[1] else f", mostly {top[0]}"
        writes = sum(p.trace.eventfd_writes for p in group if p.trace)
        if writes:
            text += f"; {writes} single writes of up to 8 bytes to an eventfd"
        yield Finding("threads", text)
    elif first.activity and first.activity.running < 0.5 and first.activity.wchan not in ("0", "?"):
        yield Finding("threads", f"{text}; the main thread waits in {first.activity.wchan}")
    elif words:
        yield Finding("threads", text)
    for process in group:
        busy = [
            f"{name} {cpu:.0f} %"
            for name, cpu, _ in (process.activity.others if process.activity else ())
            if cpu >= _BUSY
        ]
        if busy:
            yield Finding("threads", f"{process.label}, other threads: {', '.join(busy[:_THREADS])}")


def stacks(ev: Evidence) -> Iterator[Finding]:
    """Where the ranks stand, who stands elsewhere, and what code below Python waits for."""
    merged = ev.merged
    if not merged:
        return
    still = [ev.ranks[r].still for r in merged.there]
    again = ", the same in two looks" if still and all(still) else ""
    text = f"{len(merged.there)} of {len(ev.ranks)} ranks in {merged.frame}{again}"
    yield Finding("stacks", text)
    for rank, frame in merged.elsewhere.items():
        yield Finding("stacks", f"TP{rank} is elsewhere: {frame}")
    for p in ev.ranks.values():
        if words := native(p.native):
            yield Finding("native", f"{p.label}: {words} (in {p.native[0].name.partition('(')[0]})")
    branches = list(stack_tree.lines(stack_tree.tree({rank: p.looks for rank, p in ev.ranks.items()})))
    if len(branches) > 1:
        yield from (Finding("tree", cut(line)) for line in branches[:_BRANCHES])


def files(ev: Evidence) -> Iterator[Finding]:
    """Whether output could be hidden from the log."""
    workers = [*ev.ranks.values(), *(p for p in (ev.launcher, ev.detokenizer) if p)]
    if not ev.log or not workers:
        return
    if any(p.files.get(fd) in (None, "?") for p in workers for fd in "12"):
        yield Finding("files", "whether all output goes to the log may not be seen: not this user's processes")
        return
    logs = {ev.log.path, *(part.log for part in (ev.run.parts if ev.run else ()))}
    astray = [
        f"{p.label} fd {fd} is {p.files.get(fd, '?')}" for p in workers for fd in "12" if p.files.get(fd) not in logs
    ]
    if astray:
        yield Finding("files", "not all output is in the log: " + "; ".join(astray[:4]))
    else:
        yield Finding("files", "stdout and stderr of all processes are the log: nothing is hidden in a buffer")


def _groups(rows: list[Process]) -> Iterator[list[Process]]:
    """Ranks that look alike, together; other processes alone."""
    found: dict[tuple[object, ...], list[Process]] = {}
    for p in rows:
        state = p.state if p.state in "DTt" else ""  # R and S change from one look to the next
        idle = p.activity is None or p.activity.cpu < 10
        found.setdefault((state, idle) if p.role == "scheduler" else (p.pid,), []).append(p)
    yield from found.values()


def _by_trace(ranks: list[Process]) -> Iterator[list[Process]]:
    """Ranks whose main threads call the kernel alike."""
    found: dict[tuple[object, ...], list[Process]] = {}
    for p in ranks:
        words = state_of(p)
        top = p.trace.top[0][:2] if p.trace and p.trace.top else None
        found.setdefault((top, words, p.trace is not None and p.trace.rate < SPARSE), []).append(p)
    yield from found.values()


def _alike(group: list[Process]) -> str:
    shares = [p.activity.cpu for p in group if p.activity]
    cpu = (
        f" {min(shares):.0f}" + (f"-{max(shares):.0f}" if max(shares) - min(shares) >= 1 else "") + " %"
        if shares
        else ""
    )
    return f"{_names(group)} {'/'.join(sorted({p.state for p in group}))}{cpu}"


def _names(group: Iterable[Process]) -> str:
    labels = [p.label for p in group]
    return labels[0] if len(labels) == 1 else f"{labels[0]}-{labels[-1]}" if len(labels) > 2 else " and ".join(labels)
