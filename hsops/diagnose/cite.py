"""Evidence as lines for people: each says what was seen and what it is to be compared with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from hsops.core.baseline import compare
from hsops.core.divergence import STOPS, divergences
from hsops.core.nodes import absent
from hsops.diagnose import stack_tree
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.log_text import message
from hsops.diagnose.processes import SPARSE, Process
from hsops.diagnose.ras import BLIND_SPOT
from hsops.diagnose.verdict import Finding
from hsops.diagnose.waits import native, state_of

_LONG = 160
_BRANCHES = 12
_WAYS = 4
_THREADS, _BUSY = 3, 20.0  # of those that use at least so much of a core, in percent
_NO_TIME_S = 0.05
_COSTS = {
    "stacks": "which rank stands where the others do not cannot be told",
    "py-spy": "the ranks wrote down their stacks themselves, without what is below Python",
    "strace": "a rank that spins cannot be told from one that polls for work by its system calls",
    "native": "what C++, CUDA and NCCL wait for is unknown",
    "sample": "CPU, states and waits of threads are unknown",
    "gpus": "whether the GPUs work or wait is unknown",
    "kernel": "an OOM kill or a GPU fault can only be guessed",
    "log": "how far it came is unknown",
    "http": "whether it answers is unknown",
}
_FEW = 10  # answers to probes that are not worth a word


def everything(ev: Evidence) -> tuple[Finding, ...]:
    """All lines that there are, in the order of the probes."""
    return tuple(
        finding
        for part in (
            exits,
            log,
            unlike,
            last_line,
            processes,
            threads,
            stacks,
            files,
            http,
            gpus,
            nccl,
            machine,
            blind,
            overhead,
        )
        for finding in part(ev)
    )


def brief(ev: Evidence) -> tuple[Finding, ...]:
    """What is enough for a server that works."""
    return tuple(finding for part in (log, processes, http, overhead) for finding in part(ev))


def exits(ev: Evidence) -> Iterator[Finding]:
    """How the run and its ranks ended, as its supervisor recorded it."""
    if not ev.run:
        return
    if ev.run.exit:
        yield Finding("exit", f"launch_server: {ev.run.exit} after {clock(ev.run.exit.time - ev.run.started)}")
    ended = [f"{rank} {end}" for rank, end in ev.run.ranks.items() if end]
    if ended:
        yield Finding("exit", "; ".join(ended))


def log(ev: Evidence) -> Iterator[Finding]:
    """How far the log is, how long it has been silent, and how far good runs are here."""
    if not ev.log:
        return
    probed = f" ({ev.log.answers:,} only answer health probes)" if ev.log.answers > _FEW else ""
    parts = [f"{ev.log.lines:,} lines{probed}"]
    if ev.log.silent_s is not None and ev.live:
        parts[0] += f", silent for {clock(ev.log.silent_s)}"
    elif ev.log.waited_s:
        parts[0] += f", the last {clock(ev.log.waited_s)} only answers to health probes"
    summary = ev.log.summary
    known = compare(ev.baseline, summary) if ev.baseline and not summary.ready else None
    if known:
        parts.append(f"good runs of this server have {_span(known.good_lines)} when healthy")
        if known.usual_s is not None and ev.alive:
            parts.append(f"this step usually takes {clock(max(1.0, known.usual_s))}")
    if summary.ready:
        parts.append("it says that the server was ready")
    elif summary.next:
        reached = f"reached {summary.last_milestone.id}; " if summary.last_milestone else ""
        absent = summary.missing(summary.next)
        who = f" of {', '.join(absent)}" if absent and len(absent) < summary.tp else ""
        parts.append(f"{reached}next would be {summary.next.id}{who}")
    yield Finding("log", "; ".join(parts))


def unlike(ev: Evidence) -> Iterator[Finding]:
    """Where ranks stop in the way of good runs: the line that is due. Ranks that miss the same one, together.

    What ranks say beside the way of good runs is not told: settings that print, and lines that ranks write over.
    """
    good = [run.kinds for run in ev.baseline.runs if run.kinds] if ev.baseline else []
    if not ev.log or not good or ev.log.lines != ev.log.summary.lines:
        return  # of a long log the middle is not here: what it said would seem to be missing
    due: dict[str, list[str]] = {}
    for one in divergences(ev.log.summary.kinds, good, until=ev.log.summary.ready_line):
        if one.what == STOPS:
            due.setdefault(one.text, []).append(one.rank or "main")
    for text, ranks in list(due.items())[:_WAYS]:
        yield Finding("unlike", cut(f"{', '.join(ranks)}: good runs go on with: {message(text)}"))


def last_line(ev: Evidence) -> Iterator[Finding]:
    """The last news."""
    if ev.log and ev.log.news:
        yield Finding("last line", cut(message(ev.log.news[-1])))


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


def http(ev: Evidence) -> Iterator[Finding]:
    """Who listens, and what the port says."""
    port = ev.port
    if not port:
        return
    own = {p.pid for p in ev.processes}
    who = "nobody listens"
    if port.open:
        stranger = port.holder is not None and port.holder not in own
        who = f"pid {port.holder}, not of this server, listens" if stranger else "it listens"
    answers = [f"{path} {answer}" for path, answer in (("/health", port.health), ("/model_info", port.model_info))
               if answer and port.open]  # fmt: skip
    yield Finding("http", f"port {port.number}: " + "; ".join([who, *answers]))


def gpus(ev: Evidence) -> Iterator[Finding]:
    """Utilisation against power."""
    if ev.gpus:
        each = "; ".join(
            f"{g.host} {g.index}: {g.util or 0:.0f} % {g.power or 0:.0f} W {g.memory or 0:,.0f} MiB".lstrip()
            + (f" {g.clock:,.0f} MHz" if g.clock else "")
            for g in ev.gpus
        )
        shown = f"; the server is shown {ev.visible} (CUDA_VISIBLE_DEVICES)" if ev.visible else ""
        yield Finding("gpus", each + shown)


def nccl(ev: Evidence) -> Iterator[Finding]:
    """What NCCL says of its ranks, with what it cannot see."""
    if not ev.ras:
        return
    ras = ev.ras
    parts = [f"NCCL {ras.version}"] if ras.version else []
    if ras.behind:
        parts.append(
            f"most ranks at operation {ras.ahead}, " + ", ".join(f"TP{r} at {n}" for r, n in ras.behind.items())
        )
    parts += [f"no data of {', '.join(f'TP{r}' for r in ras.missing)}"] if ras.missing else []
    parts += [f"pid {pid} does not answer" for pid in ras.dead]
    yield Finding("nccl", "; ".join([*(parts or ["its ranks agree"]), f"({BLIND_SPOT})"]))


def machine(ev: Evidence) -> Iterator[Finding]:
    """OOM kills and the dump folder, where they matter."""
    if ev.own_oom:
        yield Finding("kernel", cut(ev.own_oom[-1]))
    if ev.free is not None and (ev.free < 1 << 30 or not ev.writable):
        state = "" if ev.writable else ", not writable"
        yield Finding("dumps", f"{ev.dumps}: {ev.free / 2**30:.2f} GiB free{state}")


def blind(ev: Evidence) -> Iterator[Finding]:
    """What could not be seen, except what was not needed, and what that costs."""
    for host, why in ev.lost.items():
        yield Finding("could not", f"{host}: {why}")
    for host in absent(ev.run) if ev.run else ():
        yield Finding("run", f"nothing of run {ev.run.id if ev.run else ''} is on {host}")
    argv = ev.run.argv if ev.run else ev.launcher.argv if ev.launcher else ()
    without_gpu = ("--device", "cpu") in pairwise(argv)
    for look in ev.could_not:
        if look.why != "not-needed" and not (look.probe == "gpus" and without_gpu):
            cost = f": {_COSTS[look.probe]}" if look.probe in _COSTS else ""
            yield Finding("could not", f"{look.probe}: {look.message} ({look.why}){cost}")


def overhead(ev: Evidence) -> Iterator[Finding]:
    """What looking took of the host, and that nothing is left of it."""
    if not ev.live or ev.cpu_s is None:
        return
    parts = [f"{name} {seconds:.1f} s" for name, seconds in ev.spent.items() if seconds >= _NO_TIME_S]
    held = f"LEFT TRACED OR STOPPED: threads {'; '.join(ev.held)}"
    left = held if ev.held else "no thread is left traced or stopped"
    where = f" ({', '.join(parts)})" if parts else ""
    yield Finding("overhead", f"{ev.took_s:.1f} s, {ev.cpu_s:.1f} s of CPU{where}; {left}")


def clock(seconds: float) -> str:
    """``0:09``, ``14:50``, ``2:03:10``."""
    hours, rest = divmod(max(0, round(seconds)), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def cut(text: str) -> str:
    """At most one line of a terminal or two."""
    return text if len(text) <= _LONG else text[: _LONG - 3] + "..."


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


def _span(span: tuple[int, int]) -> str:
    return f"{span[0]:,} lines" if span[0] == span[1] else f"{span[0]:,}-{span[1]:,} lines"
