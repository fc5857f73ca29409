"""The part of the capture that a CPU cannot show: from the device through the pinned ring to the file.

Run by hand: ``python tests/gpu/capture_on_gpu.py [FOLDER [WRITERS [SLOTS]]]``. Needs one CUDA GPU with 8 GB free,
torch, numpy, and 12 GB in FOLDER (default /dev/shm). Passes of the size of Kimi-K2.5's (hidden 7168, three boundaries
and final, bfloat16) are staged while the source tensors are overwritten at once, as later layers do; every file must
equal what the device held. Prints one line of JSON.
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

from hsops.payload.hsops_hs_dump.manifest import MANIFEST
from hsops.payload.hsops_hs_dump.ring import ring_for
from hsops.payload.hsops_hs_dump.rows import Ticket, place
from hsops.payload.hsops_hs_dump.settings import Settings
from hsops.payload.hsops_hs_dump.stage import Stage
from hsops.payload.hsops_hs_dump.writer import Writer

HIDDEN, SLOTS, PASSES = 7168, 4, 24
LENGTHS = (1700, 3, 2900, 1024, 1025, 1171, 369)
DEVICE = torch.device("cuda:0")


def main(parent: str, writers: str = "4", slots: str = "16") -> None:
    """Write, compare, report."""
    folder = tempfile.mkdtemp(prefix="hsops-gpu-", dir=parent)
    try:
        settings = Settings("test", (3, 31, 59), "pre-norm", folder, "run", check_ranks=False, writers=int(writers))
        began = time.perf_counter()
        ring_for(DEVICE, int(slots))
        pinned = time.perf_counter() - began
        writer = Writer(folder, settings, {"sglang": "", "strategy": ""}, wait_s=60.0)
        found = run(writer, Path(folder))
        stats = json.loads(next((Path(folder) / "hello").glob("*.stats")).read_text())
        print(json.dumps({**found, "ring_s": round(pinned, 2), "slots": int(slots), "stats": stats}))
    finally:
        shutil.rmtree(folder)


def run(writer: Writer, folder: Path) -> dict[str, object]:
    """All passes; returns the figures."""
    rows, spent = sum(LENGTHS), []
    source = torch.empty((SLOTS, rows, HIDDEN), dtype=torch.bfloat16, device=DEVICE)
    truth = {name: value for number in range(PASSES) for name, value in fingerprints(*fill(source, number)).items()}
    torch.cuda.synchronize()
    began = time.perf_counter()
    for number in range(PASSES):
        _, ids, _ = fill(source, number)
        tickets = [Ticket(f"p{number}.{i}", n) for i, n in enumerate(LENGTHS)]
        pieces, _ = place(tickets, LENGTHS, [0] * len(LENGTHS))
        entered = time.perf_counter()
        with torch.inference_mode():
            stage = Stage(rows, SLOTS, last=False, keep=True)
            for slot in range(SLOTS):
                stage.take(slot, source[slot])
            stage.seal(ids)
        assert not stage.problem, stage.problem
        spent.append(time.perf_counter() - entered)
        problem = writer.submit(stage, pieces)
        assert not problem, problem
        del stage
        source.fill_(float("nan"))
    writer.close()
    seconds = time.perf_counter() - began
    wrong = [name for name, value in truth.items() if value != of_file(folder / f"{name}.safetensors")]
    assert not wrong, f"{len(wrong)} files differ, e.g. {wrong[:3]}"
    lines = (folder / MANIFEST).read_text().splitlines()
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


def fill(source: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The states and token ids of a pass, the same every time."""
    chance = torch.Generator(DEVICE).manual_seed(number)
    source.normal_(generator=chance)
    return source, torch.randint(0, 163840, (source.shape[1],), device=DEVICE, generator=chance), number


def fingerprints(source: torch.Tensor, ids: torch.Tensor, number: int) -> dict[str, tuple[int, int]]:
    """Of each sample: exact sums over its bits as the device holds them."""
    bits, first, found = source.view(torch.int16).to(torch.int64), 0, {}
    for i, count in enumerate(LENGTHS):
        part = bits[:, first : first + count]
        weights = torch.arange(1, part.numel() // SLOTS + 1, device=DEVICE).view(count, HIDDEN)
        slots = torch.arange(1, SLOTS + 1, device=DEVICE).view(SLOTS, 1, 1)
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
