"""hsops fetch against the other ways: one loopback sshd, interleaved, medians; docs/reference/fetch-speed.md.

    python -m benchmarks.fetch [--rounds 5] [--mib 4096] [--small 200000] [--disk] [--only NAME ...] [--delay 0.1]
                               [--patience 3]

``--delay``: instead, one file of 512 MiB over a line whose round trip takes so many seconds (root, /dev/net/tun).
``--patience``: who takes more than so many times as long as the fastest is not asked again; the page says so by the
rounds. Absolute values move with the machine's load from minute to minute; only the ratios of one run mean something.
"""

from __future__ import annotations

import argparse
import datetime as dt
import getpass
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from benchmarks._fetch_peers import CIPHER, Host, Peer, peers
from hsops.core.dumps import MANIFEST, Sample
from hsops.lab import sshd
from tests.conftest import host_spec, inventory_text
from tests.slow_line import slow_line

ROOT = Path(__file__).parent.parent
DATA, PAGE = ROOT / "docs/reference/fetch-speed.json", ROOT / "docs/reference/fetch-speed.md"
OURS = "hsops fetch"
FILE = 100_000_000  # bytes of a large file


@dataclass(frozen=True)
class Took:
    """One transfer: wall-clock and client CPU seconds; what went wrong."""

    wall: float
    cpu: float
    fault: str = ""


def main(words: Sequence[str] = ()) -> None:
    """Measure, print, and write the page. ``words``: options."""
    parser = argparse.ArgumentParser()
    for name, default in (("rounds", 5), ("mib", 4096), ("small", 200_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--disk", action="store_true", help="to a disk instead of a RAM disk")
    parser.add_argument("--only", action="append", default=[], help="only peers whose names have this; repeatable")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--patience", type=float, default=math.inf)
    asked = parser.parse_args(words)
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hsops-bench-", dir="/dev/shm")))
        to = base / "to"
        if asked.disk:
            to = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hsops-bench-", dir="."))) / "to"
        if asked.delay:
            found = {f"{asked.delay * 1000:.0f} ms": far(base, to, asked.delay, asked.rounds)}
        else:
            found = near(base, to, asked)
    data = json.loads(DATA.read_text()) if DATA.exists() else {}
    data |= {f"{name}, to {'a disk' if asked.disk else 'a RAM disk'}": table for name, table in found.items()}
    DATA.write_text(json.dumps(data, indent=1) + "\n")
    PAGE.write_text(page(data))
    print(page(found))


def near(base: Path, to: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Three folders over loopback."""
    running = sshd.start(base / "sshd", alias="bench")
    try:
        host, total = Host(base / "sshd", running.port, getpass.getuser()), asked.mib << 20
        cases = {
            "files of 100 MB": (total // FILE, FILE),
            "one file": (min(1, total), total),
            "files of 4 KiB": (asked.small, 4096),
        }
        return {name: case(base, to, host, (name, *shape), asked) for name, shape in cases.items() if shape[0]}
    finally:
        sshd.stop(base / "sshd")


def case(base: Path, to: Path, host: Host, shape: tuple[str, int, int], asked: argparse.Namespace) -> dict[str, Any]:
    """All clients in turn, several times."""
    name, files, size = shape
    source = base / "dumps/bench"
    make(source, files, size)
    inventory = write_inventory(base)
    clients = {
        OURS: Peer(hsops(inventory)),
        f"{OURS} --channel ssh": Peer(hsops(inventory, "--channel", "ssh")),
        f"{OURS} --streams 4": Peer(hsops(inventory, "--streams", "4")),
        f"{OURS} --channel ssh --streams 4": Peer(hsops(inventory, "--channel", "ssh", "--streams", "4")),
        **{n: p for n, p in peers(host, source, base).items() if not asked.only or any(o in n for o in asked.only)},
    }
    took = interleaved(clients, to, asked.rounds, asked.patience)
    shutil.rmtree(source)
    return table(f"{files:,} files, {files * size / (1 << 30):.3g} GiB: {name}", files * size, took)


def far(base: Path, to: Path, delay: float, rounds: int) -> dict[str, Any]:
    """One file of 512 MiB over a long line."""
    size, source = 512 << 20, base / "dumps/bench"
    make(source, 1, size)
    with slow_line(delay) as line:
        sshd.start(base / "sshd", alias="bench", extra=(f"ListenAddress {line.address}",))
        try:
            for name in ("ssh_config", "known_hosts"):
                path = base / "sshd" / name
                path.write_text(path.read_text().replace("127.0.0.1", line.address))
            config, inventory = str(base / "sshd/ssh_config"), write_inventory(base)
            file = f"bench:{source}/s0.safetensors"
            plain = {
                OURS: hsops(inventory),
                f"{OURS} --channel ssh": hsops(inventory, "--channel", "ssh"),
                "scp": ("scp", "-q", "-F", config, "-c", CIPHER, file, "{to}"),
                "rsync -W, gcm": ("rsync", "-W", "--inplace", "-e", f"ssh -F {config} -c {CIPHER}", file, "{to}/"),
            }
            clients = {name: Peer((*line.inside, *argv)) for name, argv in plain.items()}
            took = interleaved(clients, to, rounds)
        finally:
            sshd.stop(base / "sshd")
    return table(f"one file of 512 MiB, round trip {delay * 1000:.0f} ms", size, took)


def interleaved(
    clients: Mapping[str, Peer], to: Path, rounds: int, patience: float = math.inf
) -> dict[str, list[Took]]:
    """Each client once, then all of them again; not one that failed, nor one that was slower than ``patience`` says."""
    took: dict[str, list[Took]] = {client: [] for client in clients}
    for i in range(rounds):
        fastest = min((t.wall for all_ in took.values() for t in all_ if not t.fault), default=0.0)
        for client, peer in clients.items():
            slow = i and any(t.wall > patience * fastest for t in took[client])
            if not slow and not any(t.fault for t in took[client]):
                took[client].append(run(peer, to))
                print(f"{client:<36}{took[client][-1].wall:>8.1f} s {took[client][-1].fault}", flush=True)
    return took


def run(peer: Peer, to: Path) -> Took:
    """One transfer to an empty folder."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    beside = peer.beside() if peer.beside else None
    command = [word.replace("{to}", str(to)) for word in peer.argv]
    started = time.monotonic()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.monotonic() - started
        said.seek(0)
        fault = said.read().decode(errors="replace").strip()[-200:] or f"status {status}" if status else ""
    if beside:
        beside.kill()
        beside.wait(10)
    shutil.rmtree(to)
    return Took(wall, usage.ru_utime + usage.ru_stime, fault)


def table(title: str, total: int, took: Mapping[str, Sequence[Took]]) -> dict[str, Any]:
    """What the page shows."""
    rows = {}
    for client, all_ in took.items():
        good = [t for t in all_ if not t.fault]
        fault = next((t.fault for t in all_ if t.fault), "")
        rows[client] = {
            "rounds": len(good),
            "mb_s": round(total / 1e6 / statistics.median(t.wall for t in good), 1) if good else 0.0,
            "least": round(min((total / 1e6 / t.wall for t in good), default=0.0), 1),
            "most": round(max((total / 1e6 / t.wall for t in good), default=0.0), 1),
            "cpu_s_gib": round(statistics.median(t.cpu for t in good) / (total / (1 << 30)), 2) if good else 0.0,
            "fault": fault.splitlines()[-1] if fault else "",
        }
    now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="minutes")
    return {"title": title, "time": now, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "rows": rows}


HEAD = """\
# How fast fetch is beside others

Written by `python -m benchmarks.fetch`; do not edit. Everything goes over one sshd on this machine's loopback, in
turn, and again; medians. `hsops fetch` verifies every byte, makes it durable and keeps a manifest; the others do not.
Absolute values move with the machine's load, which each table has; only the ratios of one table mean something. *CPU*
is of the client and its children alone.
"""


def page(data: Mapping[str, Any]) -> str:
    """The page."""
    lines = [HEAD]
    for name, found in data.items():
        ours = found["rows"].get(OURS, {}).get("mb_s", 0.0)
        lines += [
            f"## {name}",
            "",
            f"{found['title']}. {found['cores']} cores, load {found['load']} at the end, {found['time']}.",
            "",
        ]
        lines += [
            "| client | MB/s | least, most | fetch is so many times as fast | CPU s/GiB | rounds |",
            "|---|---|---|---|---|---|",
        ]
        for client, row in found["rows"].items():
            if row["fault"]:
                lines.append(f"| {client} | failed: {row['fault'].replace('|', '/')} | | | | {row['rounds']} |")
            else:
                times = f"{ours / row['mb_s']:.2f}" if row["mb_s"] else ""
                spread = f"{row['least']}, {row['most']}"
                lines.append(
                    f"| {client} | {row['mb_s']} | {spread} | {times} | {row['cpu_s_gib']} | {row['rounds']} |"
                )
        lines.append("")
    return "\n".join(lines)


def make(folder: Path, files: int, size: int) -> None:
    """Files of random bytes with a manifest; the content need not be a dump, only its checksum must be right."""
    folder.mkdir(parents=True)
    dice, piece = np.random.default_rng(0), 64 << 20
    with (folder / MANIFEST).open("w") as manifest:
        for i in range(files):
            digest, name = xxhash.xxh3_64(), f"s{i}"
            with (folder / f"{name}.safetensors").open("wb") as file:
                for start in range(0, size, piece):
                    data = dice.bytes(min(piece, size - start))
                    digest.update(data)
                    file.write(data)
            checksum = f"xxh3:{digest.hexdigest()}"
            sample = Sample(name, "ok", 1, (1,), "none", "BF16", 1, size, checksum, "", "r", "p", "0.5.9")
            manifest.write(json.dumps(asdict(sample)) + "\n")


def write_inventory(base: Path) -> Path:
    """It names the host and a server ``bench`` on it."""
    spec = host_spec("bench", base / "sshd").model_copy(update={"dumps": str(base / "dumps")})
    inventory = base / "inventory.yaml"
    inventory.write_text(f"{inventory_text(spec)}servers:\n  bench: {{ host: bench, model: /m }}\n")
    return inventory


def hsops(inventory: Path, *more: str) -> tuple[str, ...]:
    """The command line."""
    return (sys.executable, "-m", "hsops", "-i", str(inventory), "fetch", "-s", "bench", "--to", "{to}", *more)


if __name__ == "__main__":
    main(sys.argv[1:])
