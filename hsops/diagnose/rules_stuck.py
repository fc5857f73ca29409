"""Rules about a server on its way up that does not move any more."""

from __future__ import annotations

import re

from hsops.core.units import clock
from hsops.diagnose import cite
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.rules_serving import collective_mismatch
from hsops.diagnose.stacks import waits_for_peers
from hsops.diagnose.stages import load_patience, patience, starting_up, weights_in
from hsops.diagnose.verdict import Finding, Verdict

_P2P_OFF = re.compile(r"NCCL_P2P_DISABLE set by environment to 1")  # NCCL_DEBUG=INFO says so
_PASSES = ("timed-out", "failed")  # of the machine at that moment, not of what it has
_WAITS_FOR_WORK = ("idle", "loop", "send", "import", "rendezvous")


def busy_wait(ev: Evidence) -> Verdict | None:
    """The seeds' hang: weights are in, the log is silent, the ranks spin in one place.

    A healthy idle scheduler takes a core as well, but calls the kernel thousands of times a second; a spinning one
    hardly ever does, save single bytes to an eventfd. Load alone says nothing: without strace and stacks it abstains.
    """
    if not _silent_after_weights(ev):
        return None
    waiting = [r for r, p in ev.ranks.items() if p.asks_peers or (p.stack and not p.busy and waits_for_peers(p.stack))]
    busy = {
        r: p
        for r, p in ev.ranks.items()
        if p.busy and r not in waiting and not p.polls and p.doing not in _WAITS_FOR_WORK
    }
    if not busy or len(busy) + len(waiting) < len(ev.ranks) or any(p.still is False for p in busy.values()):
        return None
    suspect = next(iter(busy)) if len(busy) == 1 and waiting else None
    if ev.gpus_spin and suspect is None:  # with one: of others on the same cards
        return _lost_collective(ev)
    sparse, still = all(p.spins for p in busy.values()), all(p.still for p in busy.values())
    if not (sparse or still):
        return None
    return Verdict(
        "warmup-deadlock-busy-wait",
        "high" if sparse and still else "medium",
        f"{_who_spins(ev, suspect)} after {_after(ev)}; {_port_words(ev)}",
        (*cite.everything(ev), *_patches(ev)),
        rank=suspect,
        remedy=_without_patches(ev),
        next_probe="" if sparse and still else _tools(ev) or "hsops diagnose again",
    )


def lost_collective(ev: Evidence) -> Verdict | None:
    """Every GPU waits for a peer, and the ranks for their GPUs: where their Python stands does not matter then.

    The rank that asks the driver for anything, such as loading a kernel, waits there until the GPU is done.
    """
    if not _silent_after_weights(ev) or not ev.gpus_spin or not all(p.busy for p in ev.ranks.values()):
        return None
    if ev.log and ev.log.summary.stage == "graphs":
        return None  # a capture has its own rule, and its own patience
    if any(p.polls or p.asks_peers for p in ev.ranks.values()) or not any(p.spins for p in ev.ranks.values()):
        return None
    if any("custom_all_reduce" in f.file for p in ev.ranks.values() if p.stack for f in p.stack.frames):
        return None
    return _lost_collective(ev)


def forward_stuck(ev: Evidence) -> Verdict | None:
    """As the busy wait, but the ranks sleep: they wait for something that does not come."""
    if not _silent_after_weights(ev):
        return None
    inside = {r: p for r, p in ev.ranks.items() if p.doing in ("forward", "result") and p.still and not p.busy}
    if len(inside) < len(ev.ranks):
        return None
    apart = [r for r, p in inside.items() if p.stack and not waits_for_peers(p.stack)]
    suspect = apart[0] if len(apart) == 1 and len(inside) > 1 else None
    who = (
        f"TP{suspect} sleeps, the others wait for it in a collective"
        if suspect is not None
        else "all ranks sleep there"
    )
    return Verdict(
        "warmup-forward-stuck",
        "high",
        f"the first forward pass does not come back: {who}",
        (*cite.everything(ev), *_patches(ev)),
        rank=suspect,
        remedy=_without_patches(ev),
    )


def rendezvous(ev: Evidence) -> Verdict | None:
    """Ranks wait for each other before the weights: who is not among them?"""
    if not starting_up(ev) or not ev.log or ev.log.summary.stage != "distributed" or ev.silent_s < patience(ev):
        return None
    inside = [r for r, p in ev.ranks.items() if p.stack and waits_for_peers(p.stack)]
    outside = [r for r, p in ev.ranks.items() if p.stack and r not in inside]
    seen = ev.log.summary.reached.get("distributed-begin", {})
    if not inside or len(outside) != 1:
        return _lost_collective(ev) if ev.gpus_spin else None
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


def load_hang(ev: Evidence) -> Verdict | None:
    """Within the weights, nothing moves for long. A busy rank may repack them, unless a watch knows better."""
    if not starting_up(ev) or not ev.log or ev.log.summary.stage != "weights":
        return None
    if ev.silent_s < load_patience(ev) and not ev.unmoved_s:
        return None
    if not ev.ranks or not all(p.still and (ev.unmoved_s or not p.busy) for p in ev.ranks.values()):
        return None
    behind = [r for r in ev.ranks if f"TP{r}" not in ev.log.summary.reached.get("weights", {})]
    some = len(behind) < ev.tp
    return Verdict(
        "rank-straggler-load" if some else "hang-in-weight-loading",
        "medium",
        f"no line for {clock(ev.silent_s)}, and no byte or page fault while this looked: {_names(behind)} "
        f"load{'s' if len(behind) == 1 else ''} weights{_spinning(ev)}",
        cite.everything(ev),
        rank=behind[0] if len(behind) == 1 else None,
        remedy="look at the disk or mount that holds the model: dmesg, ls, dd",
        next_probe="hsops diagnose again in a minute",
        alternatives=("weights-loading-slow-mmap-netfs", "post-load-silence-unresolved"),
    )


def silent_after_load(ev: Evidence) -> Verdict | None:
    """The weights are in, every rank stands still, and no rule knows why: who is not where the others are?

    Ranks that ask for work all the time stand in one place, too; nothing is wrong with them.
    """
    if not _silent_after_weights(ev) or not all(p.still and not p.polls for p in ev.ranks.values()):
        return None
    if mismatch := collective_mismatch(ev):
        return mismatch
    waiting = [r for r, p in ev.ranks.items() if p.stack and waits_for_peers(p.stack)]
    apart = [r for r in ev.ranks if r not in waiting]
    suspect = apart[0] if len(apart) == 1 and waiting else None
    who = f"TP{suspect} stands in another place" if suspect is not None else "all ranks stand still"
    return Verdict(
        "post-load-silence-unresolved",
        "medium",
        f"{who} after {_after(ev)}{', the others wait for it' if suspect is not None else ''}; {_port_words(ev)}",
        (*cite.everything(ev), *_patches(ev)),
        rank=suspect,
        remedy=_without_patches(ev),
        next_probe=_tools(ev) or "the stacks above: what does that rank wait for?",
    )


def _spinning(ev: Evidence) -> str:
    busy = [r for r, p in ev.ranks.items() if p.busy]
    return f"; {_names(busy)} at full CPU in one place" if busy else ""


def _silent_after_weights(ev: Evidence) -> bool:
    """Every rank has its weights, the server was never ready, and the log is silent for too long."""
    return starting_up(ev) and bool(ev.ranks) and weights_in(ev) and ev.silent_s >= patience(ev)


def _who_spins(ev: Evidence, suspect: int | None) -> str:
    if suspect is not None:
        return f"TP{suspect} spins, the others wait for it,"
    return "the scheduler spins" if ev.tp == 1 else "all schedulers spin"


def _lost_collective(ev: Evidence) -> Verdict:
    early = ev.log is not None and ev.log.summary.stage == "distributed"
    if early and ev.log and _P2P_OFF.search(ev.log.text):
        return Verdict(
            "nccl-too-old-for-arch",
            "low",
            "the first collective hangs although P2P is off: it is not the way between the GPUs",
            cite.everything(ev),
            remedy="a newer NCCL (pip install -U nvidia-nccl-cu12)",
            next_probe="all_reduce_perf of nccl-tests with the same NCCL",
            alternatives=("nccl-p2p-hang", "nccl-cumem-required"),
        )
    return Verdict(
        "nccl-p2p-hang" if early else "collective-mismatch",
        "medium",
        "all GPUs are at 100 % at the power of idling: their kernels wait for a peer"
        + (" in the first collective" if early else ", so the ranks issued different collectives"),
        (*cite.everything(ev), *_patches(ev)),
        remedy="nccl: pcie-dram and args.disable-custom-all-reduce: true" if early else _without_patches(ev),
        next_probe="NCCL's own view: echo STATUS | nc localhost 28028",
        alternatives=("custom-allreduce-p2p-hang", "nccl-too-old-for-arch") if early else ("collective-deadlock",),
    )


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
        return "hsops launch --replace --wait-healthy --without-patches tells whether a patch is to blame"
    return "look at what changed in the model's forward since the last good run, then hsops launch --replace"


def _tools(ev: Evidence) -> str:
    looks = [
        (tool, blind) for tool, probe in (("py-spy", "stacks"), ("strace", "strace")) if (blind := ev.blind(probe))
    ]
    lacking = [tool for tool, blind in looks if blind.why not in _PASSES]
    if lacking:
        return f"install {' and '.join(lacking)} on the host and run hsops diagnose again"
    return f"hsops diagnose again: {' and '.join(tool for tool, _ in looks)} did not get through" if looks else ""


def _names(ranks: list[int]) -> str:
    return ", ".join(f"TP{rank}" for rank in ranks) or "the ranks"
