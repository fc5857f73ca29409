"""Rules about a server on its way up: it lives, and the log does not say that it was ready.

What moves is never called a hang: bytes read, page faults, compilers, stacks that change, lines that come.
"""

from __future__ import annotations

from hsops.core.baseline import compare
from hsops.diagnose import cite
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.stacks import waits_for_peers
from hsops.diagnose.verdict import Finding, Verdict

FLOOR_S = 20.0  # no silence shorter than this is a hang, however fast good runs are
UNKNOWN_FLOOR_S = 60.0  # the same without good runs to compare with
_GRAPHS_S = 1400.0  # CUDA graph capture took up to 1,334 s in launches that succeeded
_TINY_READ = 16 << 10  # bytes a major fault brings when a network file system is read at random
_WAITS_FOR_WORK = ("idle", "loop", "send", "import", "rendezvous")


def patience(ev: Evidence) -> float:
    """Seconds of silence after which slow is out of the question: twice what good runs took for this step."""
    if not ev.baseline or not ev.log:
        return UNKNOWN_FLOOR_S
    known, upcoming = compare(ev.baseline, ev.log.summary), ev.log.summary.next
    usual = known.usual_s if known else None
    if usual is None and upcoming:  # the last milestone is one that no good run had
        usual = ev.baseline.step_s(upcoming.id)
    return UNKNOWN_FLOOR_S if usual is None else max(FLOOR_S, 2 * usual)


def starting_up(ev: Evidence) -> bool:
    """Lives and was never ready."""
    return ev.live and ev.alive and not ev.ready


def shutting_down(ev: Evidence) -> Verdict | None:
    """It was told to end and is about it."""
    if not ev.live or not ev.alive or not ev.log:
        return None
    if not any("SIGTERM received" in row or "Gracefully exiting" in row for row in ev.log.news):
        return None
    return Verdict(
        "stopping", "high", "it was told to end and drains its requests", cite.everything(ev), remedy="hsops stop"
    )


def compiling(ev: Evidence) -> Verdict | None:
    """Compilers run in its tree, or its stacks stand in one: minutes, and no line in the log."""
    jit = [r for r, p in ev.ranks.items() if p.doing == "jit" and p.still is not True]
    if not starting_up(ev) or not (ev.compilers or jit):
        return None
    return Verdict(
        "jit-compiling-not-hung",
        "high" if ev.compilers else "medium",
        f"it compiles kernels ({', '.join(ev.compilers) or 'in its own process'}): minutes on the first start",
        cite.everything(ev),
        remedy="wait; keep the JIT caches between launches",
    )


def busy_wait(ev: Evidence) -> Verdict | None:
    """The seeds' hang: weights are in, the log is silent, the ranks spin in one place of the forward pass.

    A healthy idle scheduler takes a core as well, but calls the kernel thousands of times a second; a spinning one
    hardly ever does, save single bytes to an eventfd.
    """
    if not starting_up(ev) or not ev.ranks or not _weights_in(ev) or ev.silent_s < patience(ev):
        return None
    busy = {r: p for r, p in ev.ranks.items() if p.busy and not p.polls and p.doing not in _WAITS_FOR_WORK}
    waiting = {r: p for r, p in ev.ranks.items() if p.stack and not p.busy and waits_for_peers(p.stack)}
    if not busy or len(busy) + len(waiting) < len(ev.ranks) or any(p.still is False for p in busy.values()):
        return None
    if ev.gpus and all(g.spins for g in ev.gpus):
        return _lost_collective(ev)
    strands = [
        all(p.spins for p in busy.values()),
        all(p.still for p in busy.values()),
        bool(ev.baseline),
        any(p.trace and p.trace.eventfd_writes for p in busy.values()),
    ]
    if not any(strands[:2]):
        return None  # load alone says nothing: without strace and stacks a compile looks the same
    suspect = next(iter(busy)) if len(busy) == 1 and waiting else None
    who = (
        f"TP{suspect} spins"
        if suspect is not None
        else "its one scheduler spins"
        if ev.tp == 1
        else "all schedulers spin"
    )
    return Verdict(
        "warmup-deadlock-busy-wait",
        "high" if sum(strands) >= 2 and all(strands[:2]) else "medium",
        f"{who} after {_after(ev)}; {_port_words(ev)}",
        (*cite.everything(ev), *_patches(ev)),
        rank=suspect,
        remedy=_without_patches(ev),
        next_probe="" if all(strands[:2]) else _tools(ev),
    )


def forward_stuck(ev: Evidence) -> Verdict | None:
    """As the busy wait, but the ranks sleep: they wait for something that does not come."""
    if not starting_up(ev) or not ev.ranks or not _weights_in(ev) or ev.silent_s < patience(ev):
        return None
    inside = {r: p for r, p in ev.ranks.items() if p.doing in ("forward", "result") and p.still and not p.busy}
    if len(inside) < len(ev.ranks):
        return None
    apart = [r for r, p in inside.items() if p.stack and not waits_for_peers(p.stack)]
    suspect = apart[0] if len(apart) == 1 and len(inside) > 1 else None
    who = (
        f"TP{suspect} does, the others wait for it in a collective"
        if suspect is not None
        else "and all ranks sleep there"
    )
    return Verdict(
        "warmup-forward-stuck",
        "high" if all(p.still for p in inside.values()) else "medium",
        f"the first forward pass does not come back: {who}",
        (*cite.everything(ev), *_patches(ev)),
        rank=suspect,
        remedy=_without_patches(ev),
    )


def rendezvous(ev: Evidence) -> Verdict | None:
    """Ranks wait for each other before the weights: who is not among them?"""
    if not starting_up(ev) or not ev.log or ev.log.summary.stage != "distributed" or ev.silent_s < patience(ev):
        return None
    if ev.gpus and all(g.spins for g in ev.gpus):
        return _lost_collective(ev)
    inside = [r for r, p in ev.ranks.items() if p.doing == "rendezvous"]
    outside = [r for r, p in ev.ranks.items() if p.stack and p.doing != "rendezvous"]
    seen = ev.log.summary.reached.get("distributed-begin", {})
    if not inside or len(outside) != 1:
        return None
    rank = outside[0]
    said = "it has not begun" if f"TP{rank}" not in seen else "it began"
    return Verdict(
        "rank-never-joined",
        "high",
        f"TP{rank} never came to the rendezvous ({said}); the others wait for it",
        cite.everything(ev),
        rank=rank,
        remedy="hsops launch --replace --wait-healthy",
        next_probe="look at that rank's stack above: what does it wait for?",
    )


def graph_capture(ev: Evidence) -> Verdict | None:
    """Graph capture takes 7 s to 22 min without a line."""
    begun = ev.log is not None and "graphs-begin" in ev.log.summary.reached and ev.log.summary.stage == "graphs"
    if not starting_up(ev) or not begun:
        return None
    if ev.silent_s < max(_GRAPHS_S, patience(ev)):
        return Verdict(
            "graph-capture-slow-not-hung",
            "medium",
            "it captures CUDA graphs: up to 22 minutes in launches that succeeded",
            cite.everything(ev),
            remedy="wait, or capture fewer sizes: args.cuda-graph-max-bs",
        )
    if not any(p.still for p in ev.ranks.values()):
        return None
    return Verdict(
        "graph-capture-hang",
        "medium",
        f"no line for {cite.clock(ev.silent_s)} within graph capture, and the stacks do not move",
        cite.everything(ev),
        remedy="hsops launch --replace with args.disable-cuda-graph: true tells whether it is the capture",
    )


def loading(ev: Evidence) -> Verdict | None:
    """Weights are on their way: bytes or page faults move, or the last line is young."""
    if not starting_up(ev) or not ev.log or "weights-begin" not in ev.log.summary.reached:
        return None
    if _weights_in(ev, all_ranks=True):
        return None
    readers = [p for p in ev.ranks.values() if p.reads or p.still is False]
    random = [p for p in readers if p.activity and p.activity.faults > 1000
              and (p.activity.read or 0) / p.activity.faults < _TINY_READ]  # fmt: skip
    if random:
        faults = max(p.activity.faults for p in random if p.activity)
        return Verdict(
            "weights-loading-slow-mmap-netfs",
            "high",
            f"weights come in by {faults:,} page faults a second of a few KB each: slow, not hung",
            cite.everything(ev),
            remedy="args.weight-loader-disable-mmap: true, or copy the checkpoint to a local disk",
        )
    if readers or ev.log.grew or ev.silent_s < patience(ev):
        return Verdict(
            "loading", "high" if readers else "medium", _loading_words(ev), cite.everything(ev), remedy="wait"
        )
    return None


def load_hang(ev: Evidence) -> Verdict | None:
    """Within the weights, nothing moves for long."""
    if not starting_up(ev) or not ev.log or ev.log.summary.stage != "weights" or ev.silent_s < 2 * patience(ev):
        return None
    if not ev.ranks or not all(p.still for p in ev.ranks.values()):
        return None
    behind = [r for r in ev.ranks if f"TP{r}" not in ev.log.summary.reached.get("weights", {})]
    some = len(behind) < ev.tp
    return Verdict(
        "rank-straggler-load" if some else "hang-in-weight-loading",
        "medium",
        f"no line, byte or page fault for {cite.clock(ev.silent_s)} while {_names(behind)} load weights",
        cite.everything(ev),
        rank=behind[0] if len(behind) == 1 else None,
        remedy="look at the disk or mount that holds the model: dmesg, ls, dd",
        next_probe="hsops diagnose again in a minute",
    )


def starting(ev: Evidence) -> Verdict | None:
    """Young, or something moves: on its way."""
    if not starting_up(ev):
        return None
    moving = [p for p in ev.processes if p.role in ("child", "scheduler", "launcher") and (p.reads or p.still is False)]
    importing = [p for p in ev.processes if p.role in ("child", "launcher") and p.activity and p.activity.cpu > 20]
    young = ev.silent_s < patience(ev)
    if not (young or moving or importing):
        return None
    stage = ev.log.summary.stage if ev.log else "start"
    return Verdict(
        "starting",
        "high" if young and ev.log else "medium",
        f"it starts: in the stage '{stage}', last line {cite.clock(ev.silent_s)} ago",
        cite.everything(ev),
        remedy="wait",
        next_probe="" if young else "hsops diagnose again in half a minute",
    )


def _lost_collective(ev: Evidence) -> Verdict:
    early = ev.log is not None and ev.log.summary.stage == "distributed"
    return Verdict(
        "nccl-p2p-hang" if early else "collective-mismatch",
        "medium",
        "all GPUs are at 100 % at the power of idling: their kernels wait for a peer"
        + (" in the first collective" if early else ", so the ranks issued different collectives"),
        (*cite.everything(ev), *_patches(ev)),
        remedy="nccl: pcie-dram and args.disable-custom-all-reduce: true" if early else _without_patches(ev),
        next_probe="NCCL's own view: echo STATUS | nc localhost 28028",
    )


def _weights_in(ev: Evidence, *, all_ranks: bool = False) -> bool:
    """The weights are read: a rank, or every rank, said so."""
    reached = ev.log.summary.reached.get("weights", {}) if ev.log else {}
    return len(reached) >= (ev.tp if all_ranks else 1) or bool(ev.log and "memory-pool" in ev.log.summary.reached)


def _after(ev: Evidence) -> str:
    last = ev.log.summary.last_milestone if ev.log else None
    return f'"{last.stage}"' if last else "the start"


def _port_words(ev: Evidence) -> str:
    if not ev.port or not ev.port.open:
        return "the port never opened"
    return f"the port is open and /health says {ev.health}"


def _patches(ev: Evidence) -> tuple[Finding, ...]:
    names = [f"{name} {identity}" for name, identity in (ev.run.patches.items() if ev.run else ())]
    return (Finding("patches", f"deployed at launch: {', '.join(names)}"),) if names else ()


def _without_patches(ev: Evidence) -> str:
    if ev.run and ev.run.patches:
        return "hsops deploy --revert && hsops launch --replace --wait-healthy tells whether a patch is to blame"
    return "look at what changed in the model's forward since the last good run, then hsops launch --replace"


def _tools(ev: Evidence) -> str:
    lacking = [tool for tool, probe in (("py-spy", "stacks"), ("strace", "strace")) if ev.blind(probe)]
    return f"install {' and '.join(lacking)} on the host and run hsops diagnose again" if lacking else ""


def _loading_words(ev: Evidence) -> str:
    assert ev.log
    rates = [(p.activity.read or 0) or (p.activity.rchar or 0) for p in ev.ranks.values() if p.activity and p.reads]
    speed = f", {sum(rates) / 2**20:,.0f} MiB/s" if sum(rates) else ""
    bars = [bar for bar in ev.log.summary.bars.values() if "shard" in bar.caption.lower()]
    bar = f" ({bars[-1].percent} % of the shards)" if bars and bars[-1].percent < 100 else ""
    behind = ev.tp - len(ev.log.summary.reached.get("weights", {}))
    return f"it loads weights{bar}: {behind} of {ev.tp} ranks to go{speed}"


def _names(ranks: list[int]) -> str:
    return ", ".join(f"TP{rank}" for rank in ranks) or "the ranks"
