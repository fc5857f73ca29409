"""A process on a host that nobody looks after."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

NO_LAUNCHER, NO_SUPERVISOR, GPU_MEMORY = "no-launcher", "no-supervisor", "gpu-memory"


@dataclass(frozen=True, slots=True)
class Orphan:
    """One of them.

    Args:
        pid, start: together its identity; ``start`` in clock ticks since the host's boot.
        kind: ``no-launcher``: a process of SGLang whose launcher is gone; ``no-supervisor``: of a run of hsops whose
            supervisor is gone; ``gpu-memory``: it holds GPU memory, and no run of hsops owns it.
        command: its command line, without secrets.
        user: whose it is.
        age_s: seconds since its start.
        gpu_mib: of GPU memory that it holds, on ``gpus``.
        run: it belongs to; None: to none.
        below: pids of its descendants, which end with it.
        refused: why hsops does not end it; empty: it does when it is told to.
    """

    pid: int
    start: int
    kind: str
    command: str
    user: str
    age_s: float
    gpu_mib: int
    gpus: tuple[str, ...]
    run: str | None
    below: tuple[int, ...]
    refused: str

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


def parse_orphan(raw: dict[str, Any]) -> Orphan:
    """As the agent's verb ``orphans`` tells it."""
    known = {name: raw[name] for name in Orphan.__dataclass_fields__ if name not in ("gpus", "below")}
    return Orphan(**known, gpus=tuple(raw["gpus"]), below=tuple(raw["below"]))
