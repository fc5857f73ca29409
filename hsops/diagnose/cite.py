"""Evidence as lines for people: each says what was seen and what it is to be compared with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hsops.core.baseline import compare
from hsops.core.divergence import STOPS, divergences
from hsops.core.nodes import absent
from hsops.core.units import clock
from hsops.diagnose.cite_processes import files, processes, stacks, threads
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.log_text import cut, message
from hsops.diagnose.ras import BLIND_SPOT
from hsops.diagnose.verdict import Finding

_WAYS = 4
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


def _span(span: tuple[int, int]) -> str:
    return f"{span[0]:,} lines" if span[0] == span[1] else f"{span[0]:,}-{span[1]:,} lines"
