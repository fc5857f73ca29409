"""What a rank does on order that only a GPU can show; beside ``tests/hangs/control.py``, whose deeds work anywhere.

``install`` puts both into an interpreter's site-packages, with the lab's hooks that they need.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = "hsops_test_deeds"
CYCLES = 1 << 30  # about half a second of an H200


def install(site: Path) -> None:
    """For every server that is launched with ``control.VARIABLE``."""
    from tests.gpu import machine, one_card
    from tests.hangs import control

    shims = machine.REPOSITORY / "hsops/lab/shims"
    shutil.copytree(shims, site / control.SHIMS, dirs_exist_ok=True)
    control.install(site)
    shutil.copy(__file__, site / f"{NAME}.py")
    shutil.copy(str(one_card.__file__), site / f"{one_card.NAME}.py")
    (site / f"zz_{control.NAME}.pth").write_text(f"import {NAME}; {NAME}.start()\n")


def start() -> None:
    """In every interpreter: both kinds of deeds."""
    import hsops_test_hangs as control
    import hsops_test_one_card as one_card

    one_card.start()
    control.DEEDS.update({"kernel": kernel, "all-reduce": all_reduce})
    control.start()


def kernel(over: Callable[[], bool]) -> None:
    """One kernel after another that computes nothing; to the process it is one that never ends."""
    import torch

    while not over():
        for _ in range(8):
            torch.cuda._sleep(CYCLES)
        torch.cuda.synchronize()


def all_reduce(_over: Callable[[], bool]) -> None:
    """A collective that the other ranks do not issue: theirs pair with it from here on, and nobody gets further."""
    import torch

    torch.distributed.all_reduce(torch.zeros(1, device="cuda"))
