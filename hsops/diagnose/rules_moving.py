"""Rules about a server that moves: on its way up, or down. None of them is a hang.

Bytes read, page faults, compilers, stacks that change, lines that come: what moves is never called stuck.
"""

from __future__ import annotations

from hsops.core.units import clock
from hsops.diagnose import cite
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.stages import SLOW_LOAD_S, load_patience, patience, shards_s, starting_up, weights_in
from hsops.diagnose.verdict import Verdict

GRAPHS_S = 1400.0  # CUDA graph capture took up to 1,334 s in launches that succeeded
_TINY_READ = 16 << 10  # bytes a major fault brings when a network file system is read at random


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


def graph_capture(ev: Evidence) -> Verdict | None:
    """Graph capture takes 7 s to 22 min without a line."""
    begun = ev.log is not None and "graphs-begin" in ev.log.summary.reached and ev.log.summary.stage == "graphs"
    if not starting_up(ev) or not begun:
        return None
    if ev.silent_s < max(GRAPHS_S, patience(ev)) and not ev.unmoved_s:
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
        f"no line for {clock(ev.silent_s)} within graph capture, and the stacks do not move",
        cite.everything(ev),
        remedy="hsops launch --replace with args.disable-cuda-graph: true tells whether it is the capture",
    )


def loading(ev: Evidence) -> Verdict | None:
    """Weights are on their way: bytes or page faults move, or the last line is young."""
    if not starting_up(ev) or not ev.log or "weights-begin" not in ev.log.summary.reached:
        return None
    if weights_in(ev):
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
    if readers and shards_s(ev) >= SLOW_LOAD_S:
        return Verdict(
            "weights-loading-slow",
            "high",
            f"{_loading_words(ev)}, after {clock(shards_s(ev))}",
            cite.everything(ev),
            remedy="wait; next time from a local disk, or with args.weight-loader-prefetch-checkpoints: true",
            alternatives=("weights-loading-slow-mmap-netfs",),
        )
    if readers or ev.log.grew or ev.silent_s < patience(ev):
        return Verdict(
            "loading", "high" if readers else "medium", _loading_words(ev), cite.everything(ev), remedy="wait"
        )
    return _pause(ev)


def _pause(ev: Evidence) -> Verdict | None:
    """Nothing moves, longer than good runs took, and not yet long enough for a hang: a loader may sleep between reads.

    Where a watch asks, which saw more than one look can, its own patience counts.
    """
    left = load_patience(ev) - ev.silent_s
    if ev.unmoved_s or left <= 0 or any(p.busy for p in ev.ranks.values()):
        return None
    if ev.allowed_s and left <= 2 * patience(ev) - ev.silent_s:
        return None
    return Verdict(
        "loading",
        "low",
        f"{_loading_words(ev)}; nothing has moved for {clock(ev.silent_s)}, which is long",
        cite.everything(ev),
        remedy="wait",
        next_probe=f"hsops diagnose in {max(1.0, left):.0f} s: does it read by then?",
        alternatives=("rank-straggler-load", "hang-in-weight-loading"),
    )


def repacking(ev: Evidence) -> Verdict | None:
    """Ranks without their weights are busy: after the bar is full they repack for minutes without a line.

    Not where good runs were through it in half the time and nothing has moved since.
    """
    if not starting_up(ev) or not ev.log or ev.log.summary.stage != "weights" or ev.unmoved_s:
        return None
    if "weights-begin" not in ev.log.summary.reached:  # it still imports the model's code
        return None
    behind = [r for r in ev.ranks if f"TP{r}" not in ev.log.summary.reached.get("weights", {})]
    busy = [r for r in behind if ev.ranks[r].busy]
    if not busy:
        return None
    return Verdict(
        "weights-post-processing-slow",
        "medium",
        f"{', '.join(f'TP{r}' for r in busy)} still work on their weights at full CPU: up to 15 minutes were seen",
        cite.everything(ev),
        remedy="wait",
        next_probe="hsops diagnose again in a few minutes",
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
        f"it starts: in the stage '{stage}', last line {clock(ev.silent_s)} ago",
        cite.everything(ev),
        remedy="wait",
        next_probe="" if young else "hsops diagnose again in half a minute",
    )


def _loading_words(ev: Evidence) -> str:
    assert ev.log
    rates = [(p.activity.read or 0) or (p.activity.rchar or 0) for p in ev.ranks.values() if p.activity and p.reads]
    speed = f", {sum(rates) / 2**20:,.0f} MiB/s" if sum(rates) else ""
    bars = [bar for bar in ev.log.summary.bars.values() if "shard" in bar.caption.lower()]
    bar = f" ({bars[-1].percent} % of the shards)" if bars and bars[-1].percent < 100 else ""
    behind = ev.tp - len(ev.log.summary.reached.get("weights", {}))
    return f"it loads weights{bar}: {behind} of {ev.tp} ranks to go{speed}"
