"""Rules about kernels that do not get compiled or loaded, and files that do not come from a hub."""

from __future__ import annotations

from hsops.core.units import clock
from hsops.diagnose import cite
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.processes import Process
from hsops.diagnose.stages import patience, starting_up
from hsops.diagnose.verdict import Verdict

_LOCKS = ("file_baton.py", "filelock/")
_HUB = ("huggingface_hub/", "modelscope/", "urllib3/")
_ASLEEP = 20.0  # percent of a core


def stale_lock(ev: Evidence) -> Verdict | None:
    """A rank waits for a lock file, and nobody compiles: its owner is gone."""
    waiting = [r for r, p in ev.ranks.items() if _within(p, _LOCKS) and p.still]
    if not starting_up(ev) or not waiting or ev.compilers or ev.silent_s < patience(ev):
        return None
    if len(waiting) < len(ev.ranks) and any(p.doing == "jit" for r, p in ev.ranks.items() if r not in waiting):
        return None  # another rank has it and works
    return Verdict(
        "jit-stale-lock",
        "high" if len(waiting) == len(ev.ranks) else "medium",
        f"{_names(waiting)} wait for the lock file of a JIT build, and no compiler runs: who made it is gone",
        cite.everything(ev),
        rank=waiting[0] if len(waiting) == 1 and ev.tp > 1 else None,
        remedy="remove the file named lock in the build's folder: ~/.cache/torch_extensions, ~/.cache/flashinfer",
        alternatives=("jit-loading-stuck",),
    )


def stuck_in_jit(ev: Evidence) -> Verdict | None:
    """The ranks stand in a JIT build, asleep, and nothing compiles."""
    inside = [r for r, p in ev.ranks.items() if p.doing == "jit" and p.still and not _works(p)]
    if not starting_up(ev) or not inside or ev.compilers or ev.silent_s < patience(ev):
        return None
    if any(_works(p) for p in ev.ranks.values()):
        return None
    return Verdict(
        "jit-loading-stuck",
        "medium",
        f"{_names(inside)} stand in a JIT build for {clock(ev.silent_s)}, asleep, and no compiler runs",
        cite.everything(ev),
        rank=inside[0] if len(inside) == 1 and ev.tp > 1 else None,
        remedy="remove the JIT caches (~/.cache/flashinfer, ~/.triton), then hsops launch --replace",
        next_probe="ls -la of the cache: a lock file, or a build that is older than the installation",
        alternatives=("jit-stale-cache", "jit-stale-lock"),
    )


def hub_stall(ev: Evidence) -> Verdict | None:
    """The server waits for a hub that does not answer."""
    if not starting_up(ev) or (ev.log and "weights-begin" in ev.log.summary.reached):
        return None
    waiting = [p for p in ev.processes if not p.dead and _within(p, _HUB) and p.still and not _works(p)]
    if not waiting:
        return None
    return Verdict(
        "hub-offline-stall",
        "medium",
        f"{waiting[0].label} waits for an answer from a model hub",
        cite.everything(ev),
        remedy="HF_HUB_OFFLINE=1 in servers.<name>.env, with a model that is whole on the host; or a proxy that works",
        next_probe="curl -m 5 https://huggingface.co on the host",
    )


def _within(process: Process, files: tuple[str, ...]) -> bool:
    return process.stack is not None and any(mark in frame.file for frame in process.stack.frames for mark in files)


def _works(process: Process) -> bool:
    return process.activity is not None and (process.activity.cpu > _ASLEEP or process.reads)


def _names(ranks: list[int]) -> str:
    return ", ".join(f"TP{rank}" for rank in ranks) if len(ranks) < 4 else f"{len(ranks)} ranks"
