"""One server under measurement, and what the measurements have in common."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu import drive, machine

BOUNDARIES = [1, 2, 3]
ROW = (len(BOUNDARIES) + 1) * 7168 * 2  # bytes of one token's states
NAIVE = machine.DUMPS / "naive"


@dataclass
class Bench:
    """One server under measurement: where it listens, where its dumps go, what was measured."""

    name: str
    port: int
    passes: list[drive.Pass]

    @property
    def folder(self) -> Path:
        """Its dumps."""
        return machine.DUMPS / self.name

    def measure(self, mode: str, asked: list[list[int]], name: Callable[[int], str], *, kept: bool = True) -> None:
        """One pass; its files are removed afterwards."""
        done = drive.run(self.port, self.folder, mode, asked, name)
        print(
            f"{self.name} {mode}: {done.rate:.0f} tokens/s, {done.ok} ok, {done.failed} failed {done.reasons}",
            flush=True,
        )
        if kept:
            self.passes.append(done)
        for path in (*self.folder.glob("*.safetensors"), *NAIVE.glob("rank*/*")):
            path.unlink()

    def rates(self, mode: str) -> list[float]:
        """Tokens a second of every pass of a mode."""
        return [done.rate for done in self.passes if done.mode == mode]

    @property
    def counters(self) -> list[Any]:
        """What the ranks count about themselves."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("hello/*.stats"))]


def naive_hooks(boundaries: list[int]) -> list[dict[str, Any]]:
    """The value of ``--forward-hooks`` that installs naive_capture.py."""
    common = {"boundaries": boundaries, "folder": str(NAIVE)}
    layers = [
        {
            "name": f"naive-{k}",
            "target_modules": [f"model.layers.{k - 1}"],
            "hook_factory": "naive_capture:layer",
            "config": {**common, "boundary": k},
        }
        for k in boundaries
    ]
    last = {"name": "naive-final", "target_modules": ["model.norm"], "hook_factory": "naive_capture:final"}
    return [*layers, {**last, "config": common}]


def touch(gib: int) -> None:
    """Machines whose memory grows give the first bytes slowly: have them before anything is timed."""
    path, block = machine.RAM / "touch", bytes(64 << 20)
    machine.RAM.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(gib * 16):
            file.write(block)
    path.unlink()
    print(f"touched {gib} GiB in {time.perf_counter() - began:.1f} s", flush=True)
