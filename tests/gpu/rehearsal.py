"""What a server needs on a lab's CPU in place of a GPU's flags: the same code path with tiny sizes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

TINY = Path(__file__).parents[2] / "hsops/lab/tiny/config.json"
LENGTH = 512  # tokens of a prompt at most
OF_A_GPU = ("load-format", "max-total-tokens", "cuda-graph-max-bs", "disable-piecewise-cuda-graph")


def environment(ranks: int) -> dict[str, str]:
    """As ``hsops lab`` sets it."""
    cores = os.cpu_count() or 1
    bind = {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(rank % cores) for rank in range(ranks))} if ranks > 1 else {}
    return bind | {
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def args(wanted: dict[str, Any]) -> dict[str, Any]:
    """The lab's flags under those of ``wanted`` that are no GPU's."""
    lab = {
        "device": "cpu",
        "dtype": "float32",
        "skip-tokenizer-init": True,
        "attention-backend": "torch_native",
        "sampling-backend": "pytorch",
        "grammar-backend": "none",
        "disable-overlap-schedule": True,
        "mem-fraction-static": 0.5,
        "max-total-tokens": 4096,
        "max-running-requests": 8,
        "context-length": LENGTH,
    }
    return {**lab, **{k: v for k, v in wanted.items() if k not in OF_A_GPU}, "disable-cuda-graph": True}


def config() -> dict[str, Any]:
    """Of the lab's tiny model."""
    found: dict[str, Any] = json.loads(TINY.read_text())
    return found
