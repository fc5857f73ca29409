"""Rules about a log that stops on the way, with nothing else to look at. A log alone cannot tell slow from stuck."""

from __future__ import annotations

import re

from hsops.core.units import clock
from hsops.diagnose import cite
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.log_text import cut, message
from hsops.diagnose.stages import SLOW_LOAD_S, shards_s
from hsops.diagnose.verdict import Finding, Verdict

_JIT = re.compile(
    r"DeepGEMM (JIT )?(Pre-Compl?i?(e|le)|warmup)|Try DeepGEMM JIT|\[Auto[Tt]uner\]: Tuning|deep_gemm.*compil",
    re.IGNORECASE,
)
_TUNED, _TUNING = (
    re.compile(r"(?i)autotuner\]: Loaded \d+ configs"),
    re.compile(r"(?i)(Running FlashInfer autotune|\]: Tuning )"),
)
_LIVE = "hsops diagnose on the host while it happens: CPU, stacks and system calls of the ranks"
_CANDIDATES = {  # what was found behind logs that stop in a stage, in public reports and recorded runs
    "distributed": ("nccl-p2p-hang", "rank-never-joined", "nccl-init-hang-preload-interposer", "rendezvous-hang"),
    "kv cache": ("jit-compiling-not-hung", "custom-allreduce-p2p-hang", "post-load-silence-unresolved"),
    "http": ("jit-compiling-not-hung", "custom-allreduce-p2p-hang", "warmup-deadlock-busy-wait"),
    "warm-up": ("warmup-deadlock-busy-wait", "warmup-forward-stuck", "collective-mismatch", "jit-compiling-not-hung"),
}
_SKEW_S = 60.0
_WAITED_S = 60.0


def desync(ev: Evidence) -> Verdict | None:
    """Some ranks found their tuned kernels in the cache, others tune and wait for them."""
    if ev.ready or not ev.log or not (_TUNED.search(ev.log.text) and _TUNING.search(ev.log.text)):
        return None
    return Verdict(
        "autotune-rank-desync-deadlock",
        "medium",
        "some ranks loaded tuned kernels from the cache while others tune: their collectives no longer match",
        cite.everything(ev),
        remedy="remove the autotune cache on all ranks, or switch autotuning off",
        next_probe="" if ev.live else _LIVE,
    )


def compiling(ev: Evidence) -> Verdict | None:
    """The last news is a compiler's."""
    if ev.live or ev.ready or not ev.log or not any(_JIT.search(row) for row in ev.log.news[-3:]):
        return None
    return Verdict(
        "jit-compiling-not-hung",
        "medium",
        "the last lines are a compiler's or tuner's: 10 to 20 minutes are usual on a first start",
        cite.everything(ev),
        remedy="wait; keep the JIT caches between launches",
        next_probe=_LIVE,
    )


def graphs(ev: Evidence) -> Verdict | None:
    """The last news is graph capture."""
    if ev.live or ev.ready or not ev.log:
        return None
    reached = ev.log.summary.reached
    if "graphs-begin" not in reached or ev.log.summary.stage != "graphs" or ev.log.summary.errors:
        return None
    return Verdict(
        "graph-capture-slow-not-hung",
        "low",
        "the log stops in CUDA graph capture: 7 s to 22 minutes in launches that succeeded",
        cite.everything(ev),
        remedy="wait",
        next_probe=_LIVE,
    )


def weights(ev: Evidence) -> Verdict | None:
    """The log stops while ranks load weights: the shard bar at 100 % does not mean that they are in."""
    last = ev.log.summary.last_milestone if ev.log else None
    if ev.live or ev.ready or not ev.log or (last and last.stage != "weights"):
        return None
    ended = ev.log.summary.reached.get("weights", {})
    begun = ev.log.summary.reached.get("weights-begin", {})
    bars = [bar for bar in ev.log.summary.bars.values() if "shard" in bar.caption.lower()]
    if not (begun or ended or bars) or ev.log.summary.errors:
        return None
    times = [mark.time for mark in ended.values() if mark.time is not None]
    skewed = ended and len(ended) < ev.tp and times and max(times) - min(times) > _SKEW_S
    if skewed or (not ended and any(bar.percent == 100 for bar in bars)):
        return Verdict(
            "weights-post-processing-slow",
            "medium" if skewed else "low",
            f"the shards are open, {len(ended)} of {ev.tp} ranks have their weights: repacking takes silent minutes",
            cite.everything(ev),
            remedy="wait",
            next_probe=_LIVE,
            alternatives=("post-load-silence-unresolved", "hang-in-weight-loading"),
        )
    if shards_s(ev) >= SLOW_LOAD_S:
        return Verdict(
            "weights-loading-slow",
            "medium",
            f"weights come in slowly: {clock(shards_s(ev))} so far by the bar",
            cite.everything(ev),
            remedy="a local disk, or args.weight-loader-disable-mmap: true on a network file system",
            next_probe=_LIVE,
            alternatives=("weights-loading-slow-mmap-netfs",),
        )
    return Verdict(
        "loading",
        "low",
        f"the log stops while weights load: {len(ended)} of {ev.tp} ranks done",
        cite.everything(ev),
        next_probe=_LIVE,
    )


def proven_silence(ev: Evidence) -> Verdict | None:
    """Health probes were answered for a minute after the last news: the HTTP process lived, the warm-up did not end."""
    if ev.live or ev.ready or not ev.log or ev.log.waited_s < _WAITED_S or "http" not in ev.log.summary.reached:
        return None
    return Verdict(
        "warmup-forward-stuck",
        "low",
        f"the port was open and the warm-up did not end within {clock(ev.log.waited_s)}",
        cite.everything(ev),
        next_probe=_LIVE,
        alternatives=("warmup-deadlock-busy-wait",),
    )


def abstain(ev: Evidence) -> Verdict:
    """No rule fits: say what is known and what to look at next."""
    cause = ev.log.summary.cause if ev.log else None
    said = (Finding("log", cut(cause.said)),) if cause else ()
    if ev.live and not ev.alive:
        words = f"it ended: {cut(cause.said)}" if cause else "it ended, and no rule knows why"
        return Verdict("unknown", "low", words, (*said, *cite.everything(ev)), next_probe="hsops logs, from the end")
    if not ev.live and ev.log and not (ev.log.news or ev.log.answers):
        return Verdict(
            "unknown", "low", "the log is empty: nothing was written to it, or it is not the one", (), next_probe=_LIVE
        )
    if not ev.live:
        last = f" after '{message(ev.log.news[-1])[:60]}'" if ev.log and ev.log.news else ""
        return Verdict(
            "unknown",
            "low",
            f"the log stops{last}; a log alone cannot tell slow from stuck",
            (*said, *cite.everything(ev)),
            next_probe=_LIVE,
            alternatives=_CANDIDATES.get(ev.log.summary.stage, ()) if ev.log and not cause else (),
        )
    lacking = [b.probe for b in ev.could_not if b.probe in ("stacks", "strace") and b.why != "not-needed"]
    how = f"with {' and '.join(lacking)} allowed (root, or CAP_SYS_PTRACE)" if lacking else "again in a minute"
    return Verdict(
        "unknown",
        "low",
        "it lives and does not answer, and the evidence fits no known cause",
        (*said, *cite.everything(ev)),
        next_probe=f"hsops diagnose {how}",
    )
