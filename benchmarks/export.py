"""hsops export and verify against a plain copy of the same files: RAM disk to RAM disk, interleaved, medians, ratios.

    python -m benchmarks.export [--rounds 3] [--files 24] [--mib 32]

Absolute values move with the machine's load from minute to minute; only the ratios of one run mean something. ``cp``
checks nothing; the export reads every value, the checksum and the token ids.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.dump_maker import make

HIDDEN, SLOTS = 7168, 5  # three boundaries and both final states, as wide as Kimi-K2.5's


def main(words: Sequence[str] = ()) -> None:
    """Measure and print. ``words``: options."""
    parser = argparse.ArgumentParser()
    for name, default in (("rounds", 3), ("files", 24), ("mib", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args(words)
    base = Path(tempfile.mkdtemp(prefix="hsops-bench-", dir="/dev/shm"))
    try:
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {asked.rounds} rounds, interleaved")
        measure(base, asked.files, asked.mib << 20, asked.rounds)
    finally:
        shutil.rmtree(base)


def measure(base: Path, files: int, size: int, rounds: int) -> None:
    """All ways in turn, several times."""
    dumps, to = base / "dumps", base / "to"
    tokens = size // (HIDDEN * SLOTS * 2)
    for i in range(files):
        make(dumps, f"s{i}", range(tokens), boundaries=(3, 31, 59), final="both", dtype="BF16", hidden_size=HIDDEN)
    total = sum(path.stat().st_size for path in dumps.iterdir())
    hsops = [sys.executable, "-m", "hsops"]
    export = [*hsops, "export", str(dumps), "--mask", "all", "--to", str(to), "--format"]
    ways = {
        "cp -r": ["cp", "-r", str(dumps), str(to)],
        "hsops verify": [*hsops, "verify", str(dumps)],
        "hsops export, specforge": [*export, "specforge"],
        "hsops export, speculators": [*export, "speculators"],
        "  the same with --copy": [*export, "speculators", "--copy"],
    }
    took: dict[str, list[float]] = {way: [] for way in ways}
    cpu = dict.fromkeys(ways, 0.0)
    for _ in range(rounds):
        for way, argv in ways.items():
            shutil.rmtree(to, ignore_errors=True)
            started, before = time.monotonic(), os.times()
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            took[way].append(time.monotonic() - started)
            after = os.times()
            cpu[way] += after.children_user + after.children_system - before.children_user - before.children_system
    print(f"\n{files:,} dumps of {size / (1 << 20):g} MiB, {total / (1 << 30):.2f} GiB")
    print(f"{'way':<28}{'GB/s (median)':>14}{'min - max':>14}{'to cp':>8}{'CPU-s/GiB':>11}")
    copied = statistics.median(took["cp -r"])
    for way, seconds in took.items():
        rates = sorted(total / 1e9 / s for s in seconds)
        middle = statistics.median(seconds)
        print(
            f"{way:<28}{total / 1e9 / middle:>14.2f}{rates[0]:>8.2f} - {rates[-1]:.2f}{copied / middle:>8.2f}"
            f"{cpu[way] / rounds / (total / (1 << 30)):>11.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
