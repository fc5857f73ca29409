"""Ranks on two GPUs: are all-reduced states captured, with the all-reduce fused into the next layer and without?

Run through ``tests/gpu/run.sh ranks``; ``HSOPS_GPU_TP`` says how many GPUs instead of two. For each server:
``hsops verify --live``, and the obvious capture (naive_capture.py) of the same passes beside it, which must be wrong
where the all-reduce is fused: else it was not. The weights are random and large enough that every layer changes the
stream (``--load-format dummy`` makes them next to nothing), and FlashInfer is the real one. Writes ``ranks.json`` into
the folder given.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.gpu import drive, machine
from tests.gpu.bench import BOUNDARIES, NAIVE, naive_hooks
from tests.gpu.models import deepseek

HOST = ("NCCL_", "TORCH_SYMM_MEM_", "NVSHMEM_")  # what the machine asks of every NCCL program on it
# FlashInfer's buffers are PyTorch's symmetric memory, which would take NVLink multicast; a shared host may not bear it
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
TP = machine.TP or 2
VOCABULARY = 8192
CONFIG = deepseek(4, heads=16, width=512, dense=4096, vocabulary=VOCABULARY)  # 3.5 GB of weights
WEIGHTS = machine.REPOSITORY / "hsops/lab/tiny/weights.py"


def main(out: Path) -> None:
    """Both servers, one after the other."""
    machine.prepare(flashinfer=True)
    _build()
    servers = [_server("fused", {}), _server("unfused", {"enforce-disable-flashinfer-allreduce-fusion": True})]
    machine.write_inventory(servers, BOUNDARIES)
    _weigh([machine.HOME / "models" / server.name for server in servers])
    machine.hsops("deploy", "--yes")
    figures = {}
    for server in servers:
        with machine.running([server]) as ports:
            figures[server.name] = _look(server.name, ports[server.name])
            figures[server.name]["fused_ranks"] = _fused_ranks(server.name)
        (out / "ranks.json").write_text(json.dumps(figures, indent=1))
    machine.hsops("deploy", "--revert", "--yes")
    if [figures[server.name]["fused_ranks"] for server in servers] != [TP, 0]:
        sys.exit("the all-reduce was not fused on all ranks of the one server and on none of the other")


def _build() -> None:
    """FlashInfer's kernel, which it would else compile while the server starts."""
    began = time.perf_counter()
    code = "from flashinfer.jit.comm import gen_trtllm_comm_module as made; made().build_and_load()"
    subprocess.run([machine.PYTHON, "-c", code], check=True, timeout=400)
    print(f"FlashInfer's all-reduce compiled in {time.perf_counter() - began:.0f} s", flush=True)


def _fused_ranks(name: str) -> int:
    """Ranks whose log says that they have FlashInfer's buffers."""
    logs = [path.read_text(errors="replace") for path in machine.HOME.glob("state/runs/*/server.log")]
    mine = [text for text in logs if f"{machine.HOME}/models/{name}'" in text]
    return len({rank for text in mine for rank in re.findall(r"FlashInfer workspace initialized for rank (\d+)", text)})


def _server(name: str, args: dict[str, Any]) -> machine.Server:
    env = {key: value for key, value in os.environ.items() if key.startswith(HOST)}
    env |= {"SGLANG_IS_FLASHINFER_AVAILABLE": "true", **NO_MULTICAST}
    more = {"forward-hooks": json.dumps(naive_hooks(BOUNDARIES)), "load-format": "auto", "mem-fraction-static": 0.5}
    return machine.Server(name, CONFIG, tp=TP, args={**more, **args}, env=env)


def _weigh(models: list[Path]) -> None:
    """Weights for the first, which the others share."""
    first, *others = models
    subprocess.run([machine.PYTHON, WEIGHTS, first], check=True, timeout=300)
    for model in others:
        os.link(first / "model.safetensors", model / "model.safetensors")


def _look(name: str, port: int) -> dict[str, Any]:
    live = machine.hsops("verify", "--live", "--server", name, ok=(0, 1, 3))
    folder = machine.DUMPS / name
    asked = drive.prompts(8, 100, 250, 3, VOCABULARY)  # 2,048 rows at most, all in one pass: above, nothing is fused
    drive.run(port, folder, "both", asked, lambda i: f"hs-both-{i}")
    script, words = Path(__file__).with_name("same_bits.py"), ",".join(map(str, BOUNDARIES))
    naive = {}
    for rank in range(TP):
        command = [machine.PYTHON, script, folder, NAIVE / f"rank{rank}", words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        naive[f"rank{rank}"] = json.loads(done.stdout)
    shutil.rmtree(NAIVE)
    hellos = [json.loads(path.read_text()) for path in sorted(folder.glob("hello/*.json"))]
    return {"verify_live": live, "naive_against_capture": naive, "hello": hellos}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
