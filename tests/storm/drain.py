"""``make drain``: ten hours in small. More dumps than the host's RAM disk holds, and ``fetch --follow --evict`` beside.

python -m tests.storm.drain [--dumps 20000] [--mib 512] [--kib 150]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hsops.core.dumps import MANIFEST, Sample
from hsops.fetch.ledger import LEDGER
from hsops.lab import sshd
from tests.dump_maker import checksum_of
from tests.fetching import ROOT, SERVER
from tests.hosts import host_spec, inventory_text

FOLDER = Path(__file__).parents[2] / "docs/reference"
DATA, PAGE = FOLDER / "fetch-drain.json", FOLDER / "fetch-drain.md"
ADMIT = 0.04  # of the disk must be free before the next dump is begun, as extract does

HEAD = """\
# A data set that the host cannot hold

Written by `make drain`; do not edit. A writer makes dumps of random sizes, in random order of their numbers, in a RAM
disk on the host, as fast as it can while 4 % of the disk are free; `hsops fetch --follow --evict` over a loopback sshd
takes them to this machine's disk until the manifest names all of them. Then every dump here is read and compared.
"""


def main(words: list[str]) -> int:
    """Run, print, write the page; 1 when anything was wrong."""
    parser = argparse.ArgumentParser()
    for name, default in (("dumps", 20_000), ("mib", 512), ("kib", 150)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args(words)
    base = Path(tempfile.mkdtemp(prefix="hsops-drain-"))
    try:
        with host(base, asked.mib << 20) as inventory:
            data = drain(base, inventory, asked.dumps, asked.kib << 10)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    data["disk"] = asked.mib << 20
    DATA.write_text(json.dumps(data, indent=1) + "\n")
    PAGE.write_text(page(data))
    print(page(data))
    whole = data["right"] == data["dumps"] == data["evicted"]
    return 0 if whole and not data["left"] and not data["full"] and not data["exit"] else 1


@contextmanager
def host(base: Path, size: int) -> Iterator[Path]:
    """An inventory whose host has a RAM disk of so many bytes for dumps. Needs root."""
    dumps = base / "dumps"
    dumps.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "hsops-drain", str(dumps)], check=True)
    try:
        sshd.start(base / "sshd", alias="drain")
        spec = host_spec("drain", base / "sshd").model_copy(update={"dumps": str(dumps)})
        (base / "inventory.yaml").write_text(inventory_text(spec) + SERVER.format(host="drain"))
        yield base / "inventory.yaml"
    finally:
        sshd.stop(base / "sshd")
        subprocess.run(["umount", str(dumps)], check=False)


def drain(base: Path, inventory: Path, dumps: int, size: int) -> dict[str, Any]:
    """One writer, one fetch."""
    source, to = base / "dumps/tiny", base / "to"
    source.mkdir()
    command = [sys.executable, "-m", "hsops", "-i", str(inventory), "fetch", "--to", str(to), "--json"]
    started = time.monotonic()
    with (base / "events").open("w") as events:
        process = subprocess.Popen(
            [*command, "--follow", "--evict", "--count", str(dumps)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=events,
        )
        written = write(source, dumps, size, process)
        code = process.wait(600)
    took = time.monotonic() - started
    lines = [json.loads(line) for line in (to / LEDGER).read_text().splitlines()]
    envelope = json.loads((base / "events").read_text().splitlines()[-1])
    right = sum(
        checksum_of((to / name).read_bytes()) == sum_ for name, sum_ in written["sums"].items() if (to / name).exists()
    )
    return {
        "dumps": dumps,
        "bytes": written["bytes"],
        "exit": code,
        "right": right,
        "evicted": len({line["name"] for line in lines if line["state"] == "evicted"}),
        "left": len(list(source.glob("*.safetensors"))),
        "least_free": written["least_free"],
        "waited_s": round(written["waited_s"], 1),
        "full": written["full"],
        "seconds": round(took, 1),
        "channel": envelope["data"].get("channel", ""),
        "lost_streams": envelope["data"].get("lost_streams", -1),
        "load": round(os.getloadavg()[0], 1),
    }


def write(source: Path, dumps: int, size: int, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """All of them, unless the fetch ends before."""
    dice, bits = random.Random(1), np.random.default_rng(1)
    numbers = list(range(dumps))
    dice.shuffle(numbers)
    found: dict[str, Any] = {"sums": {}, "bytes": 0, "least_free": 1 << 62, "waited_s": 0.0, "full": 0}
    with (source / MANIFEST).open("a") as manifest:
        for number in numbers:
            found["waited_s"] += wait_for_room(source, process)
            data = bits.bytes(dice.randrange(size // 10, 2 * size))
            sample = Sample(
                f"s{number}", "ok", 1, (1,), "none", "BF16", 1, len(data), checksum_of(data), "", "r", "p", "0.5.9"
            )
            try:
                (source / f"{sample.file}.part").write_bytes(data)
            except OSError:
                found["full"] += 1
                continue
            (source / f"{sample.file}.part").rename(source / sample.file)
            manifest.write(json.dumps(asdict(sample)) + "\n")
            manifest.flush()
            found["sums"][sample.file] = sample.checksum
            found["bytes"] += len(data)
            found["least_free"] = min(found["least_free"], os.statvfs(source).f_bavail * os.statvfs(source).f_frsize)
            if process.poll() is not None:
                break
    return found


def wait_for_room(source: Path, process: subprocess.Popen[bytes]) -> float:
    """Seconds until there was."""
    started = time.monotonic()
    while process.poll() is None and time.monotonic() - started < 300:
        disk = os.statvfs(source)
        if disk.f_bavail > ADMIT * disk.f_blocks:
            break
        time.sleep(0.005)
    return time.monotonic() - started


def page(data: dict[str, Any]) -> str:
    """The page."""
    rows = [
        ("dumps written", f"{data['dumps']:,}, {data['bytes']:,} bytes"),
        ("RAM disk", f"{data['disk']:,} bytes"),
        ("least that was free", f"{data['least_free']:,} bytes"),
        ("writes that found the disk full", data["full"]),
        ("the writer waited for room", f"{data['waited_s']} s of {data['seconds']} s"),
        ("dumps here, content right", f"{data['right']:,}"),
        ("removed on the host, by the ledger", f"{data['evicted']:,}"),
        ("left on the host", data["left"]),
        ("channel, streams lost", f"{data['channel']}, {data['lost_streams']}"),
        ("exit of the fetch", data["exit"]),
        ("load of the machine", data["load"]),
    ]
    return "\n".join([HEAD, "| | |", "|---|---|", *(f"| {what} | {figure} |" for what, figure in rows), ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
