"""What the machine can do: copies from the device to pinned memory, and writes to a RAM disk by 1 to 8 threads."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

FILE, BLOCK = 256 << 20, 56 << 20  # bytes


def main(folder: str) -> None:
    """Print the rates in GB/s as JSON."""
    figures = {"device": torch.cuda.get_device_name(), "pinned_copy": _pinned(), "pageable_copy": _pageable()}
    figures["ram_disk_write"] = {str(n): _writes(folder, n) for n in (1, 2, 4, 8)}
    print(json.dumps(figures))


def _pinned() -> float:
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    return _rate(lambda: (target.copy_(source, non_blocking=True), torch.cuda.synchronize()), 1 << 30)


def _pageable() -> float:
    source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    return _rate(source.cpu, 1 << 28)


def _rate(step, size: int, times: int = 5) -> float:
    step()
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - began)
    return round(size / best / 1e9, 2)


def _writes(parent: str, threads: int) -> float:
    folder = tempfile.mkdtemp(dir=parent)
    data = memoryview(os.urandom(1 << 20) * (BLOCK >> 20))

    def write(number: int) -> None:
        for file in range(4):
            handle = os.open(Path(folder, f"{number}.{file}"), os.O_WRONLY | os.O_CREAT)
            os.posix_fallocate(handle, 0, FILE)
            for offset in range(0, FILE, BLOCK):
                os.pwrite(handle, data[: FILE - offset], offset)
            os.close(handle)

    try:
        workers = [threading.Thread(target=write, args=(n,)) for n in range(threads)]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return round(4 * FILE * threads / (time.perf_counter() - began) / 1e9, 2)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["/dev/shm"]))
