"""docs/reference/slurm.json and the page made of it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from tests.measured import Measured

HEAD = """\
# A real SGLang as jobs of a real Slurm

Written by `make slurm`; do not edit. Slurm as Debian has it (`slurm-wlm`, no accounting), one controller and two
nodes on one machine, each node with processes, /dev/shm and a network of its own; hsops reaches the login node over
SSH; real SGLang 0.5.9 on the CPU, the lab's model. *load* is the machine's at the end.

| what was done | what hsops said, or found | seconds | load | day |
|---|---|---|---|---|"""


def record(what: str, said: str, seconds: float) -> None:
    """Put a result in its row and renew the page."""
    load = round(os.getloadavg()[0], 1)
    with MEASURED.change() as data:
        data[what] = {"said": said, "seconds": round(seconds), "load": load, "day": time.strftime("%Y-%m-%d")}


def page(data: Mapping[str, Mapping[str, Any]]) -> str:
    """The page."""
    rows = [
        f"| {what} | {one['said']} | {one['seconds']} | {one['load']} | {one['day']} |" for what, one in data.items()
    ]
    return "\n".join([HEAD, *rows, ""])


MEASURED = Measured("slurm", page)
