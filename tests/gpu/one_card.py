"""Several ranks on one card, for hangs that take two: NCCL refuses that, unless it thinks them on different hosts.

``start`` runs in every interpreter of a server (deeds.py) that is launched with ``VARIABLE``. Each rank gets the first
card and a host's name of its own, so that NCCL goes over sockets. What it cannot show is what two cards do: NVLink,
custom all-reduce, one card that is busy beside one that is not.

    python -m tests.gpu.one_card FOLDER

is two ranks without SGLang: they add up, then one issues a collective that the other does not. What NCCL's RAS says
before and after goes into ``ras-well.txt`` and ``ras-mismatch.txt``; ``ras.json`` says whether it is what was done.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier, Event
    from types import ModuleType
    from typing import Any

VARIABLE = "HSOPS_GPU_ONE_CARD"
NAME = "hsops_test_one_card"
SCHEDULER = "sglang.srt.managers.scheduler"
RANKS = 2


def start() -> None:
    """In every interpreter of a server: ranks are sent to the first card."""
    if os.environ.get(VARIABLE):
        import importlib

        importlib.import_module("hsops_lab_shims.hooks").after_import(SCHEDULER, _send)


def _send(module: ModuleType) -> None:
    run = module.run_scheduler_process

    @functools.wraps(run)
    def on_the_first(server_args: Any, port_args: Any, _gpu_id: int, tp_rank: int, *args: Any, **kwargs: Any) -> Any:
        apart(tp_rank)
        return run(server_args, port_args, 0, tp_rank, *args, **kwargs)

    module.run_scheduler_process = on_the_first


def apart(rank: int) -> None:
    """This process is on a host of its own, as far as NCCL can tell; before it is initialised."""
    os.environ["NCCL_HOSTID"] = f"rank-{rank}"


def main(out: Path) -> None:
    """Both ranks, and RAS asked beside them."""
    from hsops.agent import probe_gpus
    from hsops.diagnose import ras

    spawn = multiprocessing.get_context("spawn")
    up, go = spawn.Barrier(RANKS + 1), spawn.Event()
    ranks = [spawn.Process(target=_rank, args=(rank, up, go), daemon=True) for rank in range(RANKS)]
    for one in ranks:
        one.start()
    found: dict[str, Any] = {}
    try:
        up.wait(120)
        for state in ("well", "mismatch"):
            if state == "mismatch":
                go.set()
                time.sleep(5)
            began = time.monotonic()
            text = probe_gpus.ras("localhost:28028", [one.pid for one in ranks if one.pid], 5.0)
            found[state] = {"s": round(time.monotonic() - began, 2), "read": repr(ras.parse(text))}
            (out / f"ras-{state}.txt").write_text(text)
    except Exception as error:
        found["problem"] = f"{type(error).__name__}: {error}"
    finally:
        found["exits"] = [one.exitcode for one in ranks]
        for one in ranks:
            one.kill()
    (out / "ras.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found), flush=True)


def _rank(rank: int, up: Barrier, go: Event) -> None:
    """Three sums together; then rank 0 begins one alone."""
    import torch
    import torch.distributed as ranks

    apart(rank)
    torch.cuda.set_device(0)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29777"}
    ranks.init_process_group("nccl", rank=rank, world_size=RANKS)
    value = torch.ones(1024, device="cuda")
    for _ in range(3):
        ranks.all_reduce(value)
    torch.cuda.synchronize()
    if value[0].item() != RANKS**3:
        raise ValueError(f"{value[0].item()} is no sum of the ranks")
    up.wait(120)
    go.wait()
    if rank == 0:
        ranks.all_reduce(value)
        torch.cuda.synchronize()
    time.sleep(600)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
