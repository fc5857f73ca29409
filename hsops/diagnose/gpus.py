"""GPUs as the driver tells of them, and which of them a server uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hsops.core.milestones import number

_MOST = 1024  # GPUs of a host, whatever a log's arguments say


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: percent, MiB, W, MHz, compute capability such as 12.0. None or "" where nvidia-smi does not say.

    ``bus``: where it is, as ``00000000:C1:00.0``. ``host``: of a server over several; else empty.
    """

    index: int
    util: float | None
    memory: float | None
    power: float | None
    power_limit: float | None
    name: str = ""
    compute_cap: float | None = None
    clock: float | None = None
    driver: str = ""
    memory_total: float | None = None
    bus: str = ""
    host: str = ""

    @property
    def major(self) -> int:
        """Of the compute capability; 0 when unknown."""
        return int(self.compute_cap or 0)

    @property
    def spins(self) -> bool:
        """All its time in a kernel at the power of idling: it waits for a peer (a loop of loads, no arithmetic)."""
        if self.util is None or self.power is None or not self.power_limit:
            return False
        return self.util >= 95 and self.power < 0.4 * self.power_limit


@dataclass(frozen=True, slots=True)
class GpuApp:
    """A process that holds GPU memory, as the driver tells: MiB, and the GPU's index; None where it does not say.

    ``orphan``: one of SGLang's that has no launcher any more; a rank of a server that lives is none. ``host``: of a
    server over several; else empty.
    """

    pid: int
    memory: float | None
    name: str
    gpu: int | None = None
    orphan: bool = False
    host: str = ""


def used(args: Mapping[str, str], tp: int, visible: str) -> list[int]:
    """Indices of the GPUs of a server; of one over several hosts, on each of them.

    CUDA may count otherwise than nvidia-smi, whose indices these are, where GPUs differ (CUDA_DEVICE_ORDER).

    Args:
        args: of SGLang, by their names in its log.
        visible: CUDA_VISIBLE_DEVICES; names of GPUs, unlike numbers, lead to no index.
    """
    first, step, stages, copies, nodes = (
        default if (value := number(args.get(name, ""))) is None else value
        for name, default in (("base_gpu_id", 0), ("gpu_id_step", 1), ("pp_size", 1), ("dp_size", 1), ("nnodes", 1))
    )
    if args.get("enable_dp_attention") == "True":
        copies = 1  # among the tp ranks
    wanted = [first + step * i for i in range(min(_MOST, tp * stages * copies // max(1, nodes)))]
    shown = [word.strip() for word in visible.split(",")]
    if all(word.isdecimal() for word in shown):
        return [int(shown[i]) for i in wanted if i < len(shown)]
    return wanted
