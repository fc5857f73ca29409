"""Rules about GPUs and what the ranks do with them: backends, all-reduce, preloaded libraries, memory left behind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import median

from hsops.core.units import clock
from hsops.diagnose import cite
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.gpus import GpuApp
from hsops.diagnose.processes import Process
from hsops.diagnose.rules_ended import rank_died
from hsops.diagnose.rules_log import named_cause
from hsops.diagnose.rules_stuck import busy_wait
from hsops.diagnose.stages import patience
from hsops.diagnose.taxonomy import family_of
from hsops.diagnose.verdict import Finding, Verdict
from hsops.diagnose.waits import IN_DRIVER, state_of

_SM120 = 12  # RTX PRO 6000, RTX 50: Blackwell without the datacenter's tensor memory
_DATACENTER = re.compile(r"trtllm|cutlass_mla|flashmla|flash_mla")  # backends whose kernels SM120 lacks
_ALLOCATORS = re.compile(r"jemalloc|tcmalloc|mimalloc|libasan")  # preloaded everywhere, and harmless to NCCL
_SPEED = re.compile(r"Decode batch[.,][^\n]*#running-req: (\d+)[^\n]*gen throughput \(token/s\): ([\d.]+)")
_SLOW_TOKENS_S = 40.0  # 16 were seen with an fp8 KV cache on SM120, 90 without
_FEW = 4
_LARGE, _MOST = (
    0.1,
    0.5,
)  # of a GPU's memory: what a server that wants nearly all of it misses, and what none can do without
_USUAL_MIB = 81920.0  # of a GPU whose size nvidia-smi does not tell


def backend_of_datacenter(ev: Evidence) -> Verdict | None:
    """It ended, and was given backends for datacenter Blackwell on SM120."""
    if not ev.live or ev.alive or not ev.log or not any(gpu.major == _SM120 for gpu in ev.gpus):
        return None
    names = ("attention_backend", "moe_runner_backend")
    asked = {n: ev.log.summary.args[n] for n in names if _DATACENTER.search(ev.log.summary.args.get(n, ""))}
    if not asked or ev.ready:
        return None
    words = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in asked.items())
    return Verdict(
        "arch-not-supported",
        "medium",
        f"{words}: kernels of datacenter Blackwell, which {ev.gpus[0].name or 'this GPU'} (SM120) cannot run",
        cite.everything(ev),
        remedy="args.attention-backend: flashinfer or triton, and no trtllm backend for the experts",
        next_probe="hsops logs: the first exception",
    )


def wrong_kernel(ev: Evidence) -> Verdict | None:
    """It answers, at a fraction of the speed: the fp8 KV cache has no fast kernel on SM120."""
    if not ev.healthy or not ev.log or not any(gpu.major == _SM120 for gpu in ev.gpus):
        return None
    speeds = [float(rate) / max(1, int(n)) for n, rate in _SPEED.findall(ev.log.text) if int(n) <= 2]
    if not ev.log.summary.args.get("kv_cache_dtype", "").startswith("fp8") or len(speeds) < _FEW:
        return None
    if median(speeds) > _SLOW_TOKENS_S:
        return None
    return Verdict(
        "wrong-kernel-slow",
        "medium",
        f"{median(speeds):.0f} tokens/s for one request with an fp8 KV cache on SM120, which has a slow path for it",
        cite.brief(ev),
        remedy="args.kv-cache-dtype: auto",
        next_probe="the same request without the flag",
    )


def custom_all_reduce(ev: Evidence) -> Verdict | None:
    """The ranks stand in SGLang's own all-reduce and do not come back: it needs P2P that works, and one stream."""
    inside = [r for r, p in ev.ranks.items() if _stands_in(p, "custom_all_reduce.py")]
    if not (ev.live and ev.alive) or ev.healthy or not inside or ev.silent_s < patience(ev):
        return None
    if not all(p.still is not False for p in ev.ranks.values()) or any(p.polls for p in ev.ranks.values()):
        return None
    return Verdict(
        "custom-allreduce-deadlock" if ev.ready else "custom-allreduce-p2p-hang",
        "high" if ev.gpus_spin else "medium",
        f"{len(inside)} of {len(ev.ranks)} ranks stand in the custom all-reduce and do not come back",
        cite.everything(ev),
        remedy="args.disable-custom-all-reduce: true" + (", without enable-pdmux" if _pdmux(ev) else ""),
        alternatives=("custom-allreduce-p2p-hang", "nccl-p2p-hang") if ev.ready else ("nccl-p2p-hang",),
    )


def preloaded(ev: Evidence) -> Verdict | None:
    """NCCL does not come up and a library stands between it and the driver."""
    held = [p for p in ev.ranks.values() if _stands_in(p, "pynccl") and p.preload]
    libraries = sorted({word for p in held for word in re.split(r"[\s:]+", p.preload) if not _ALLOCATORS.search(word)})
    if not (ev.live and ev.alive) or not libraries or ev.silent_s < patience(ev) or ev.ready:
        return None
    if any(g.spins for g in ev.own_gpus):
        return None  # the kernels run: it is the way between the GPUs
    return Verdict(
        "nccl-init-hang-preload-interposer",
        "high",
        f"NCCL does not come up under a preloaded library: {', '.join(libraries)}",
        (Finding("processes", f"LD_PRELOAD of {held[0].label}: {held[0].preload}"), *cite.everything(ev)),
        remedy="without that library (LD_PRELOAD), or CUDA_DISABLE_CONTROL=true for HAMi's",
        alternatives=("rendezvous-hang",),
    )


def driver_spins(ev: Evidence) -> Verdict | None:
    """Ranks burn their cores in the kernel's part of the NVIDIA driver and do not come back to Python."""
    if not (ev.live and ev.alive) or ev.healthy or ev.silent_s < patience(ev):
        return None
    inside = [r for r, p in ev.ranks.items() if state_of(p) == IN_DRIVER and p.still is not False and not p.reads]
    if not inside:
        return None
    return Verdict(
        "gpu-driver-spin",
        "medium" if all(ev.ranks[r].still for r in inside) else "low",
        f"{', '.join(f'TP{r}' for r in inside)} spin{'s' if len(inside) == 1 else ''} in the kernel's NVIDIA driver, "
        f"silent for {clock(ev.silent_s)}",
        cite.everything(ev),
        rank=inside[0] if len(inside) == 1 else None,
        alternatives=("xid-gsp-timeout", "collective-deadlock"),
    )


def nccl_names_the_rank(ev: Evidence) -> Verdict | None:
    """NCCL counts one rank's collectives short of the others', or has no data of it, and nothing moves."""
    if not (ev.live and ev.alive) or ev.healthy or not ev.ras or ev.silent_s < patience(ev):
        return None
    odd = tuple(ev.ras.behind) or ev.ras.missing
    if len(odd) != 1 or not all(p.still is not False for p in ev.ranks.values()):
        return None
    if (seen := busy_wait(ev)) and seen.rank is not None:
        return None  # then it is known why it is behind
    return Verdict(
        "collective-deadlock" if ev.ready else "collective-mismatch",
        "medium",
        f"NCCL: TP{odd[0]} " + (f"is at operation {ev.ras.behind[odd[0]]}, the others at {ev.ras.ahead}"
                                 if odd[0] in ev.ras.behind else "gives no data"),
        cite.everything(ev),
        rank=odd[0],
        remedy="hsops launch --replace --wait-healthy; what runs on one rank only? patches, branches on the rank",
        next_probe="hsops diagnose again in half a minute: do the counts stand still?",
        alternatives=("collective-mismatch" if ev.ready else "collective-deadlock", "scheduler-deadlock"),
    )  # fmt: skip


def left_on_gpu(ev: Evidence) -> Verdict | None:
    """The server is gone, and a process that it left, or that an older one left, still holds memory on a GPU.

    Ranks of other servers that live are none of them. What the log names as the cause comes before what was left, but
    for memory that ran out where an older server's process holds much of it.
    """
    if not ev.live or ev.alive:
        return None
    if cause := named_cause(ev):
        return _crowded_out(ev, cause)
    ours = {p.pid for p in ev.processes if not p.dead}
    held = [a for a in ev.gpu_apps if a.pid in ours or a.orphan]
    if not held:
        return None
    if not any(a.pid in ours for a in held) and rank_died(ev):
        return None  # an older server's: it did not end this one's rank
    pids = _pids(held)
    return Verdict(
        "orphan-holds-gpu",
        "high",
        f"the server is gone, and {' '.join(pids)} still hold{'s' if len(pids) == 1 else ''} "
        f"{sum(a.memory or 0 for a in held):,.0f} MiB of GPU memory",
        (*_holders(held), *cite.everything(ev)),
        remedy=_end(held),
    )


def out_of_memory(ev: Evidence) -> Verdict | None:
    """Out of GPU memory, beside orphans that are too small to be the reason, or on other GPUs: they are named."""
    cause, held = named_cause(ev), _older(ev)
    if not cause or not held or family_of(cause.name) != "gpu-memory":
        return None
    evidence = (*cause.evidence[:1], *_holders(held), *cause.evidence[1:])
    return replace(cause, evidence=evidence, alternatives=(*cause.alternatives, "orphan-holds-gpu"))


def _crowded_out(ev: Evidence, cause: Verdict) -> Verdict | None:
    """Out of GPU memory because an orphan holds a large share of a GPU that this server uses."""
    if family_of(cause.name) != "gpu-memory":
        return None
    held, used = _older(ev), ev.used_gpus
    shares = {i: _share(ev, i, sum(a.memory or 0 for a in held if a.gpu in (i, None))) for i in used}
    full = [i for i, share in shares.items() if share >= _LARGE]
    there = [a for a in held if a.gpu is None or a.gpu in full]
    if not full:
        return None
    pids = _pids(there)
    return Verdict(
        "orphan-holds-gpu",
        # which GPUs these are is certain when they are all: CUDA may count otherwise than nvidia-smi
        "high" if len(used) == len(ev.gpus) and max(shares.values()) >= _MOST else "medium",
        f"out of GPU memory ({cause.name}), and {' '.join(pids)}, which an older server left, "
        f"hold{'s' if len(pids) == 1 else ''} {sum(a.memory or 0 for a in there):,.0f} MiB "
        f"of GPU {', '.join(map(str, full))}",
        (*_holders(there), *cause.evidence),
        remedy=_end(there) + ", then hsops launch",
        alternatives=(cause.name,),
    )


def _older(ev: Evidence) -> list[GpuApp]:
    """Orphans on the GPUs that are not of this server."""
    ours = {p.pid for p in ev.processes}
    return [app for app in ev.gpu_apps if app.orphan and app.pid not in ours]


def _share(ev: Evidence, index: int, memory: float) -> float:
    """How much of a GPU's memory so many MiB are."""
    total = next((gpu.memory_total for gpu in ev.gpus if gpu.index == index), None)
    return memory / (total or _USUAL_MIB)


def _pids(apps: Iterable[GpuApp]) -> list[str]:
    """Each once: one process may hold memory on several GPUs."""
    return list(dict.fromkeys(str(app.pid) for app in apps))


def _holders(apps: Iterable[GpuApp]) -> Iterator[Finding]:
    for app in apps:
        where = "" if app.gpu is None else f" of GPU {app.gpu}"
        yield Finding("gpus", f"pid {app.pid} ({app.name or '?'}): {app.memory or 0:,.0f} MiB{where}")


def _end(apps: Iterable[GpuApp]) -> str:
    return "hsops stop " + " ".join(f"--orphan {pid}" for pid in _pids(apps))


def wedged(ev: Evidence) -> Verdict | None:
    """GPUs at 100 % while nobody has given them work."""
    busy = [g.index for g in ev.own_gpus if g.spins]
    if not ev.live or not busy or ev.healthy or ev.gpu_apps:
        return None
    idle = bool(ev.ranks) and ev.ready and all(p.polls or p.doing in ("idle", "loop") for p in ev.ranks.values())
    if not idle and ev.processes:
        return None
    return Verdict(
        "gpu-wedged-needs-reset",
        "low",
        f"GPU {', '.join(map(str, busy))} at 100 % and idle power, and the ranks have given it nothing to do",
        cite.everything(ev),
        remedy="end every process on it, then nvidia-smi --gpu-reset -i N as root; else reboot",
        next_probe="nvidia-smi, and the kernel's log for Xid lines",
    )


def _stands_in(process: Process, file: str) -> bool:
    return process.stack is not None and any(file in frame.file for frame in process.stack.frames)


def _pdmux(ev: Evidence) -> bool:
    return ev.log is not None and ev.log.summary.args.get("enable_pdmux") == "True"
