"""Rules about a login node: can its Slurm be asked, and can what the servers ask of it be had? Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hsops.core.inventory import ServerSpec
from hsops.core.partitions import objections, parse_partitions
from hsops.doctor.findings import Facts, Finding

_BLOCKS = ("unknown", "too-short", "not-up")


def client(facts: Facts) -> Iterator[Finding]:
    """Its commands, and a controller that answers them."""
    for folder, names in _folders(facts).items():
        found, place = facts.look(f"slurm {folder}"), f"in {folder}" if folder else "on the PATH"
        blind = facts.blind(f"slurm {folder}")
        if lacks := ", ".join((found or {}).get("lacks", ())):
            why = f"{names} cannot be launched, watched or stopped: jobs are submitted from here"
            fix = "name the login node in servers.<name>.host, or the folder of sbatch in slurm.bin"
            yield Finding("blocker", "slurm", f"no {lacks} {place}", why, fix)
        if trouble := blind["message"] if blind else (found or {}).get("trouble"):
            why = f"{names} can be neither submitted nor cancelled without it; jobs that run go on"
            fix = "scontrol ping there; ask who runs the cluster"
            yield Finding("blocker", "slurm", f"Slurm's controller does not answer: {trouble}", why, fix)


def asked(facts: Facts) -> Iterator[Finding]:
    """What each server's job asks for."""
    for job in facts.jobs:
        found = _of(facts, job)
        if not found.get("partitions"):
            continue
        for one in objections(job, parse_partitions(found["partitions"]), facts.usual_s.get(job.name)):
            level = "blocker" if one.kind in _BLOCKS else "warning"
            yield Finding(level, "slurm", f"{job.name}: {one.what}", one.why, one.fix)  # type: ignore[arg-type]


def accounting(facts: Facts) -> Iterator[Finding]:
    """Without it nobody remembers a job for long, and its accounts are words."""
    without = [job for job in facts.jobs if _of(facts, job).get("accounting", "").endswith("/none")]
    if without:
        why = "why a job ended is known only as long as its controller remembers it (MinJobAge, mostly 300 s)"
        yield Finding("note", "slurm", "no accounting (sacct)", why)
    for job in without:
        if words := [name for name in ("account", "qos") if getattr(job.slurm, name)]:
            said = " and ".join(words)
            what = f"{job.name}: slurm.{said} without accounting"
            yield Finding("warning", "slurm", what, "Slurm checks neither, and counts nothing", f"leave out {said}")


def _of(facts: Facts, job: ServerSpec) -> Mapping[str, Any]:
    return facts.look(f"slurm {job.slurm.bin or ''}") or {}


def _folders(facts: Facts) -> Mapping[str, str]:
    """Folder of Slurm's commands -> the servers that name it."""
    found: dict[str, list[str]] = {}
    for job in facts.jobs:
        found.setdefault(job.slurm.bin or "", []).append(job.name)
    return {folder: ", ".join(names) for folder, names in found.items()}
