"""More dumps than the host's RAM disk holds: extract, with ``fetch --follow --evict`` beside it, and who was faster."""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from hsops.core.dumps import MANIFEST
from tests.gpu import machine, steps

TICK_S = 0.25
ROOM = 0.3  # of the disk must be free before an extract that found it full goes on


def write_prompts(file: Path, count: int, low: int, high: int, vocabulary: int) -> int:
    """Prompts of ``low`` to ``high`` random tokens as JSON lines; returns how many tokens."""
    dice, total = random.Random(7), 0
    with file.open("w") as out:
        for number in range(count):
            ids = dice.choices(range(2, vocabulary), k=dice.randint(low, high))
            total += len(ids)
            out.write(json.dumps({"id": f"s{number:05}", "input_ids": ids}) + "\n")
    return total


def mount(size: int) -> str:
    """A RAM disk of so many bytes for the dumps; says why there is none, where there is none."""
    machine.DUMPS.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "hsops-gpu", str(machine.DUMPS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.stderr.strip()


def unmount() -> None:
    """Nothing is left of it."""
    subprocess.run(["umount", "--lazy", str(machine.DUMPS)], capture_output=True, timeout=20, check=False)


class Tail:
    """A growing manifest: bytes and samples that it names as whole, read where it was left off."""

    def __init__(self, file: Path) -> None:
        self._file, self._at = file, 0
        self.bytes = self.samples = self.failed = 0

    def look(self) -> None:
        """Take in the new lines."""
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._at)
            lines = file.read().rpartition(b"\n")[0]
        if not lines:
            return
        self._at += len(lines) + 1
        for line in map(json.loads, lines.splitlines()):
            if line["status"] == "ok":
                self.bytes, self.samples = self.bytes + line["bytes"], self.samples + 1
            else:
                self.failed += 1


class Watch:
    """What lies on the host and is not here yet, four times a second, while the context is open.

    Args:
        host, here: folders of dumps.
        smi: a file for what nvidia-smi says meanwhile.
    """

    def __init__(self, host: Path, here: Path, smi: Path | None = None) -> None:
        self.host, self.here, self._smi = Tail(host / MANIFEST), Tail(here / MANIFEST), smi
        self.rows: list[tuple[float, int, int, float]] = []  # seconds, bytes there and here, share of the disk in use
        self._over, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self.host.look()
        self.here.look()
        self._before = self.host.bytes, self.host.samples
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(TICK_S):
            self.host.look()
            self.here.look()
            disk = os.statvfs(machine.DUMPS)
            used = 1 - disk.f_bavail / disk.f_blocks
            self.rows.append((round(time.monotonic() - began, 1), self.host.bytes, self.here.bytes, round(used, 3)))
            if self._smi and self.host.bytes > self._before[0]:
                steps.record_smi(self._smi, "busy")
                self._smi = None

    def told(self) -> dict[str, Any]:
        """Figures, GB/s over the seconds in which something came."""
        rates = {}
        for name, column in (("dumped", 1), ("fetched", 2)):
            moving = [(a, b) for a, b in zip(self.rows, self.rows[1:], strict=False) if b[column] > a[column]]
            if moving:
                first, last = moving[0][0], moving[-1][1]
                rates[f"{name}_GB_per_s"] = round((last[column] - first[column]) / (last[0] - first[0]) / 1e9, 3)
                rates[f"{name}_until_s"] = last[0]
        behind = [there - here for _, there, here, _ in self.rows]
        return {
            **rates,
            "bytes": self.host.bytes - self._before[0],
            "most_behind_bytes": max(behind, default=0),
            "disk_used_most": max((row[3] for row in self.rows), default=0.0),
            "failed_lines": self.host.failed,
            "every_5_s": self.rows[::20],
        }


def both(
    tale: steps.Steps, row: dict[str, Any], prompts: Path, to: Path, *, server: str, count: int, **how: Any
) -> bool:
    """extract, again when the disk was full, and fetch beside it until all are here. The row gets the figures.

    Args:
        count: samples that the host's manifest names in the end.
        how: ``most`` seconds; ``smi``, a file; ``concurrency``.
    """
    until = time.monotonic() + min(how["most"], tale.left)
    fetching = steps.Command(("fetch", "-s", server, "--to", str(to), "--follow", "--evict", "--count", str(count)))
    with Watch(machine.DUMPS / server, to, how.get("smi")) as watch:
        extracted = _extract(tale, row, prompts, server, until, how["concurrency"])
        whole = extracted.exit == 0 and not extracted.data.get("failures")
        ended = time.monotonic()
        fetched = fetching.wait(max(3.0, min(until, ended + 120) - time.monotonic()) if whole else 5.0)
    row["commands"].append(fetched.told())
    tokens, size, took = extracted.data.get("tokens") or 0, extracted.data.get("bytes") or 1, ended - fetching.began
    seen = watch.told()
    row |= {
        **seen,
        "tokens_per_s": round(seen.get("dumped_GB_per_s", 0) * 1e9 * tokens / size),
        "samples": extracted.data.get("samples"),
        "tokens": tokens,
        "failures": len(extracted.data.get("failures") or []),
        "extract_s": round(took, 1),
        "fetch_after_extract_s": round(fetched.s + fetching.began - ended, 1),
        "evicted": fetched.data.get("evicted"),
        "channel": fetched.data.get("channel"),
        "troubles": (fetched.data.get("troubles") or [])[:3],
    }
    return whole and fetched.exit == 0


def _extract(
    tale: steps.Steps, row: dict[str, Any], prompts: Path, server: str, until: float, concurrency: int
) -> steps.Said:
    """Until all are there: it ends when the disk is full, and goes on when there is room."""
    while True:
        most = max(1.0, until - time.monotonic())
        words = ("extract", str(prompts), "-s", server, "--concurrency", str(concurrency))
        said = tale.ask(row, *words, most=most)
        full = any(error.get("type") == "SpaceError" for error in said.errors)
        row["found_disk_full"] = row.get("found_disk_full", 0) + full
        if not full or time.monotonic() > until:
            return said
        while time.monotonic() < until and _free() < ROOM:
            time.sleep(0.2)


def _free() -> float:
    disk = os.statvfs(machine.DUMPS)
    return disk.f_bavail / disk.f_blocks
