"""hsops fetch against scp and rsync: one loopback sshd, RAM disk to RAM disk, interleaved, medians and ratios.

    python -m benchmarks.fetch [--rounds 3] [--files 16] [--mib 64] [--small 2000]

Absolute values move with the machine's load from minute to minute; only the ratios of one run mean something.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import xxhash

from hsops.core.dumps import MANIFEST, Sample
from hsops.lab import sshd
from tests.conftest import host_spec, inventory_text

ROOT = Path(__file__).parent.parent
CIPHER = "aes128-gcm@openssh.com"  # the fastest here, for everybody


@dataclass(frozen=True)
class Took:
    """One transfer: wall-clock and client CPU seconds."""

    wall: float
    cpu: float


def main(words: Sequence[str] = ()) -> None:
    """Measure and print. ``words``: options."""
    parser = argparse.ArgumentParser()
    for name, default in (("rounds", 3), ("files", 16), ("mib", 64), ("small", 2000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args(words)
    base = Path(tempfile.mkdtemp(prefix="hsops-bench-", dir="/dev/shm"))
    try:
        sshd.start(base / "sshd", alias="bench")
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {asked.rounds} rounds, interleaved")
        measure(base, "large", asked.files, asked.mib << 20, asked.rounds)
        measure(base, "small", asked.small, 64 << 10, asked.rounds)
    finally:
        sshd.stop(base / "sshd")
        shutil.rmtree(base)


def measure(base: Path, name: str, files: int, size: int, rounds: int) -> None:
    """One case: all clients in turn, several times."""
    source, total = base / "dumps" / name, files * size
    make(source, files, size)
    clients = {
        "hsops fetch": hsops(base, name),
        "hsops fetch --streams 1": hsops(base, name, "--streams", "1"),
        "rsync -W --inplace": ["rsync", "-a", "-W", "--inplace", "-e", f"{ssh(base)}", f"bench:{source}/", "{to}/"],
        "scp -r": ["scp", "-q", "-r", "-F", str(base / "sshd/ssh_config"), "-c", CIPHER, f"bench:{source}", "{to}"],
    }
    took: dict[str, list[Took]] = {client: [] for client in clients}
    for _ in range(rounds):
        for client, argv in clients.items():
            took[client].append(run(argv, base / "to"))
    shutil.rmtree(source)
    print(f"\n{name}: {files:,} files of {size / (1 << 20):g} MiB, {total / (1 << 30):.2f} GiB")
    print(f"{'client':<26}{'MB/s (median)':>14}{'min - max':>16}{'to hsops':>10}{'CPU-s/GiB':>11}")
    ours = middle(took["hsops fetch"], lambda t: t.wall)
    for client, all_ in took.items():
        wall = middle(all_, lambda t: t.wall)
        rates = sorted(total / 1e6 / t.wall for t in all_)
        cpu = middle(all_, lambda t: t.cpu) / (total / (1 << 30))
        spread = f"{rates[0]:.0f} - {rates[-1]:.0f}"
        print(f"{client:<26}{total / 1e6 / wall:>14.0f}{spread:>16}{ours / wall:>10.2f}{cpu:>11.2f}")


def run(argv: list[str], to: Path) -> Took:
    """One transfer to an empty folder."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    command = [word.replace("{to}", str(to)) for word in argv]
    started = time.monotonic()
    child = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.monotonic() - started
    if status:
        raise SystemExit(f"{command}: status {status}: {child.stderr.read().decode() if child.stderr else ''}")
    shutil.rmtree(to)
    return Took(wall, usage.ru_utime + usage.ru_stime)


def make(folder: Path, files: int, size: int) -> None:
    """Files of random bytes with a manifest; the content need not be a dump, only its checksum must be right."""
    folder.mkdir(parents=True)
    dice = np.random.default_rng(0)
    with (folder / MANIFEST).open("w") as manifest:
        for i in range(files):
            data = dice.bytes(size)
            checksum = f"xxh3:{xxhash.xxh3_64_hexdigest(data)}"
            sample = Sample(f"s{i}", "ok", 1, (1,), "none", "BF16", 1, size, checksum, "", "r", "p", "0.5.9")
            (folder / sample.file).write_bytes(data)
            manifest.write(json.dumps(asdict(sample)) + "\n")


def hsops(base: Path, server: str, *more: str) -> list[str]:
    """The command line, and the inventory it needs."""
    spec = host_spec("bench", base / "sshd").model_copy(update={"dumps": str(base / "dumps")})
    inventory = base / "inventory.yaml"
    servers = "".join(f"  {name}: {{ host: bench, model: /m }}\n" for name in ("large", "small"))
    inventory.write_text(f"{inventory_text(spec)}servers:\n{servers}")
    return [sys.executable, "-m", "hsops", "-i", str(inventory), "fetch", "-s", server, "--to", "{to}", *more]


def ssh(base: Path) -> str:
    """rsync's transport."""
    return f"ssh -F {base / 'sshd/ssh_config'} -c {CIPHER}"


def middle(all_: list[Took], what: Callable[[Took], float]) -> float:
    """The median."""
    return statistics.median(what(took) for took in all_)


if __name__ == "__main__":
    main(sys.argv[1:])
