"""What ``hsops stop`` ended, and the proof that it is gone, as lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hsops.core.errors import HsopsError
from hsops.core.orphans import Orphan
from hsops.core.proof import HeldGpu, Proof
from hsops.core.units import counted
from hsops.remote.orphans import StoppedOrphan
from hsops.remote.runs import Stopped
from hsops.render.console import error_lines
from hsops.render.status import memory, orphan_line


def host_lines(
    stopped: Iterable[tuple[str, Stopped]], failed: Mapping[str, HsopsError], *, many: bool
) -> Iterator[str]:
    """Of runs: (host, what was ended there); ``many``: of several hosts, which are named then."""
    none = True
    for host, one in stopped:
        none = False
        on = f" on {host}" if many else ""
        ended = counted(len(one.ended), "process")
        job = one.run.job
        done = "not ended after" if job and not job.over else "stopped in"
        yield f"{one.run.server}: run {one.run.id}{on} {done} {one.seconds:.1f} s, {ended} ended"
        yield from _rows(one)
        if job:
            how = "Slurm ended all that it had started there" if job.over else "Slurm HAS NOT ENDED IT YET"
            yield f"  slurm      {job}: {how}"
            yield from () if job.over else (f"             {text}" for text in job.lingers)
        if one.proof:
            yield from proof_lines(one.proof, one.left)
    if none and not failed:
        yield "nothing is running"
    for error in failed.values():
        yield from error_lines(error)


def orphan_lines(stopped: Iterable[StoppedOrphan]) -> Iterator[str]:
    """Of orphans."""
    for one in stopped:
        yield f"pid {one.orphan.pid} ended in {one.seconds:.1f} s, {counted(len(one.ended), 'process')} in all"
        yield from _rows(one)
        yield from proof_lines(one.proof, one.left)


def asked_lines(host: str, orphans: Iterable[Orphan]) -> Iterator[str]:
    """What would be ended, before anybody agrees."""
    for orphan in orphans:
        yield orphan_line(host, orphan)
        if orphan.below:
            yield f"{'':16} {'':10} and below it: pid {', '.join(map(str, orphan.below))}"


def proof_lines(proof: Proof, left: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Processes, port, shared memory, GPU memory: what is proven, and who holds what is not back."""
    there = len(list(left))
    yield f"  processes  {f'{there} LEFT' if there else 'none left'}"
    if proof.port_holder:
        holder = proof.port_holder
        who = f"pid {holder.pid} ({holder.command[:60]})" if holder.pid else "somebody who hides"
        yield f"  port       {proof.port} is held by {who}, which is not of this run"
    elif proof.port:
        yield f"  port       {proof.port} is free"
    if proof.segments_left:
        names = ", ".join(proof.segments_left[:4])
        yield f"  shm        {len(proof.segments_left)} left, others' or not known to be its own: {names}"
    else:
        swept = f", {len(proof.removed)} of them removed by stop" if proof.removed else ""
        count = f"{counted(proof.segments, 'segment')} gone{swept}"
        yield f"  shm        {count if proof.segments else 'no segments'}"
    yield from _gpu(proof)


def faults(host: str, one: Stopped | StoppedOrphan) -> Iterator[dict[str, Any]]:
    """What is not proven, as entries of the envelope's ``errors``; a port that somebody else took is no fault."""
    job, proof = (one.run.job if isinstance(one, Stopped) else None), one.proof
    if job and not job.over:
        why, fix = job.lingers
        yield {"type": "UnhealthyError", "message": f"{job}: not ended yet", "host": host, "why": why, "fix": fix}
    pids = [str(row["pid"]) for row in one.left]
    if pids:
        why = "a process in an uninterruptible sleep waits for the kernel, mostly for a GPU's driver"
        fix = f"ps -o pid,stat,wchan:32,cmd -p {','.join(pids)} shows where; it may need a reset"
        message = f"still there: {counted(len(pids), 'process')}, {', '.join(pids)}"
        yield {"type": "UnhealthyError", "message": message, "host": host, "why": why, "fix": fix}
    for held in proof.held if proof else ():
        message = f"GPU {held.gpu}: {memory(held.mib)} is not back {proof.gpu_s if proof else 0:.0f} s after the end"
        yield {"type": "UnhealthyError", "message": message, "host": host, "why": _by(held), "fix": "hsops doctor"}


def _rows(one: Stopped | StoppedOrphan) -> Iterator[str]:
    if one.beside:
        yield f"  beside: {one.beside}"
    for lack in one.unwritten:
        yield f"  WARNING: {lack}"
    for row in one.ended:
        yield f"  {row['pid']:>8}  {row['by']:4}  {row['command']}"
    for row in one.left:
        yield f"  {row['pid']:>8}  LEFT  {row['command']} (state {row['state']})"


def _gpu(proof: Proof) -> Iterator[str]:
    if proof.gpu_unknown:
        yield f"  gpu        nothing is known of GPU memory: {proof.gpu_unknown}"
        return
    for held in proof.held:
        yield f"  gpu        GPU {held.gpu}: {memory(held.mib)} NOT BACK after {proof.gpu_s:.0f} s; {_by(held)}"
    if proof.held:
        return
    sums = ", ".join(f"GPU {gpu}: {_mib(before)} -> {_mib(after)}" for gpu, before, after in proof.gpus)
    if proof.gpu_hidden:
        yield f"  gpu        nvidia-smi shows no process here, only sums: {sums}"
    elif proof.gpu_mib:
        yield f"  gpu        {memory(proof.gpu_mib)} back after {proof.gpu_s:.1f} s ({sums})"
    else:
        yield "  gpu        it held no GPU memory"


def _mib(mib: int | None) -> str:
    return "?" if mib is None else memory(mib)


def _by(held: HeldGpu) -> str:
    who = ", ".join(f"pid {one.pid} ({one.command[:60] or 'hidden'}) has {memory(one.mib)}" for one in held.by)
    return who or "nobody there can be seen: another container's, another user's, or the driver still frees it"
