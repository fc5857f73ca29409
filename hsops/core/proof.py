"""Proof that stopped processes are gone, as the agent found it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds something. ``mib`` of GPU memory; 0 for a port. ``pid`` is None when it hides."""

    pid: int | None
    command: str
    mib: int = 0


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """GPU memory that was not given back: on GPU ``gpu``, and the processes there, which may be none."""

    gpu: str
    mib: int
    by: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Proof:
    """What the processes leave behind.

    Args:
        port: that they listened on; None: they had none.
        port_holder: who listens there now; None: nobody.
        segments: how many segments in /dev/shm they shared.
        removed: those that stop removed because nobody has them any more.
        segments_left: those that are still there: somebody else has or owns them, or they may be no segments of these.
        gpu_unknown: why nothing is known of GPU memory; empty when it is.
        gpu_missing: there is no nvidia-smi.
        gpu_mib: what they held.
        gpu_hidden: nvidia-smi shows no process, so that only the sums tell.
        gpus: (GPU, MiB in use before, and after) of those that they held.
        held: what was not given back within ``gpu_s`` seconds.
    """

    port: int | None
    port_holder: Holder | None
    segments: int
    removed: tuple[str, ...]
    segments_left: tuple[str, ...]
    gpu_unknown: str = ""
    gpu_missing: bool = False
    gpu_mib: int = 0
    gpu_hidden: bool = False
    gpus: tuple[tuple[str, int | None, int | None], ...] = ()
    held: tuple[HeldGpu, ...] = ()
    gpu_s: float = 0.0


def parse_proof(raw: Mapping[str, Any]) -> Proof:
    """As the agent's ``run-stop`` tells it."""
    port, shm, gpu = raw["port"] or {}, raw["shm"], raw["gpu"]
    there = port.get("holder")
    known = Proof(
        port=port.get("number"),
        port_holder=Holder(there["pid"], there["command"] or "") if there else None,
        segments=shm["segments"],
        removed=tuple(shm["removed"]),
        segments_left=tuple(shm["left"]),
    )
    if blind := gpu["could_not"]:
        return replace(known, gpu_unknown=blind["message"], gpu_missing=blind["why"] == "not-found")
    return replace(
        known,
        gpu_mib=gpu["mib"],
        gpu_hidden=gpu["hidden"],
        gpus=tuple((one["gpu"], one["before"], one["after"]) for one in gpu["gpus"]),
        held=tuple(HeldGpu(one["gpu"], one["mib"], tuple(Holder(**by) for by in one["by"])) for one in gpu["held"]),
        gpu_s=gpu["seconds"],
    )
