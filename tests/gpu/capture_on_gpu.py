"""The part of the capture that a CPU cannot show: from the device through the pinned buffer to the file.

Run by hand: ``python tests/gpu/capture_on_gpu.py [FOLDER]``. Needs one CUDA GPU with 4 GB free, torch, numpy, and 4 GB
in FOLDER (default /dev/shm). Passes of the size of Kimi-K2.5's (hidden 7168, three boundaries and final, bfloat16) are
staged while the source tensors are overwritten at once, as later layers do; every file must equal what the device held.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from hsops.payload.hsops_hs_dump import files
from hsops.payload.hsops_hs_dump.rows import Ticket, place
from hsops.payload.hsops_hs_dump.settings import Settings
from hsops.payload.hsops_hs_dump.stage import Stage
from hsops.payload.hsops_hs_dump.writer import Writer

HIDDEN, SLOTS, PASSES = 7168, 4, 12
LENGTHS = (1700, 3, 2900, 1024, 1025)


def main(parent: str) -> None:
    """Write, compare, report."""
    folder = tempfile.mkdtemp(prefix="hsops-gpu-", dir=parent)
    try:
        settings = Settings("test", (3, 31, 59), "pre-norm", folder, "run", check_ranks=False)
        writer = Writer(folder, settings, {"sglang": "", "strategy": ""}, wait_s=60.0)
        print(json.dumps(run(writer, Path(folder))))
    finally:
        shutil.rmtree(folder)


def run(writer: Writer, folder: Path) -> dict[str, object]:
    """All passes; returns the figures."""
    rows, truth, spent = sum(LENGTHS), {}, []
    source = torch.empty((SLOTS, rows, HIDDEN), dtype=torch.bfloat16, device="cuda")
    began = time.perf_counter()
    for number in range(PASSES):
        ids = torch.randint(0, 163840, (rows,), device="cuda")
        source.normal_(generator=torch.Generator("cuda").manual_seed(number))
        truth.update(fingerprints(source, ids, number))
        tickets = [Ticket(f"p{number}.{i}", n) for i, n in enumerate(LENGTHS)]
        pieces, _ = place(tickets, LENGTHS, [0] * len(LENGTHS))
        torch.cuda.synchronize()
        entered = time.perf_counter()
        with torch.inference_mode():
            stage = Stage(rows, SLOTS, keep=True)
            for slot in range(SLOTS):
                stage.take(slot, source[slot])
            stage.seal(ids)
        assert not stage.problem, stage.problem
        spent.append(time.perf_counter() - entered)
        assert not writer.submit(stage, pieces)
        source.fill_(float("nan"))
    writer.close()
    seconds = time.perf_counter() - began
    wrong = [name for name, value in truth.items() if value != of_file(folder / f"{name}.safetensors")]
    assert not wrong, f"{len(wrong)} files differ, e.g. {wrong[:3]}"
    lines = (folder / files.MANIFEST).read_text().splitlines()
    assert len(lines) == len(truth) and all(json.loads(line)["status"] == "ok" for line in lines)
    size = PASSES * rows * SLOTS * HIDDEN * 2
    return {
        "device": torch.cuda.get_device_name(),
        "files": len(truth),
        "bytes": size,
        "GB_per_s": round(size / seconds / 1e9, 2),
        "scheduler_ms_per_pass": round(1000 * float(np.median(spent)), 2),
        "scheduler_ms_first_pass": round(1000 * spent[0], 2),
    }


def fingerprints(source: torch.Tensor, ids: torch.Tensor, number: int) -> dict[str, tuple[int, int]]:
    """Of each sample: exact sums over its bits as the device holds them."""
    bits, first, found = source.view(torch.int16).to(torch.int64), 0, {}
    for i, count in enumerate(LENGTHS):
        part = bits[:, first : first + count]
        weights = torch.arange(1, part.numel() // SLOTS + 1, device="cuda").view(count, HIDDEN)
        slots = torch.arange(1, SLOTS + 1, device="cuda").view(SLOTS, 1, 1)
        found[f"p{number}.{i}"] = int((part * weights * slots).sum()), int(ids[first : first + count].sum())
        first += count
    return found


def of_file(path: Path) -> tuple[int, int]:
    """The same of a file."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    shape = json.loads(data[8:start])["hidden_states"]["shape"]
    size = 2 * int(np.prod(shape))
    bits = np.frombuffer(data, "<i2", count=size // 2, offset=start).reshape(shape).astype(np.int64)
    weights = np.arange(1, shape[0] * HIDDEN + 1).reshape(shape[0], 1, HIDDEN)
    slots = np.arange(1, SLOTS + 1).reshape(1, SLOTS, 1)
    return int((bits * weights * slots).sum()), int(np.frombuffer(data, "<i8", offset=start + size).sum())


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["/dev/shm"]))
