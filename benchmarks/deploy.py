"""hsops deploy against ansible-playbook and pyinfra: one loopback sshd, the same files, interleaved, medians, ratios.

    python -m benchmarks.deploy [--rounds 7] [--slow-rounds 2]

Every round, each tool brings the files to a host that it has never seen (first), then is run again (no-op), each time
as a new process. After the first run every file must be there byte for byte, and the second must have written none.
The floor: a cold ``ssh true``, then ``python -c 'import fabric'``. Absolute values move with the machine's load from
minute to minute; only the ratios of one run mean something.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from benchmarks._deploy_peers import COPY, UNARCHIVE, Ansible, Pyinfra
from benchmarks._deploy_target import Target

ROOT = Path(__file__).parent.parent
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}  # as pip installs it: with byte code
FLOOR, GOAL_FLOOR, GOAL_PEERS = "floor", 1.5, 5.0
OURS, COPIES = "hsops deploy", "ansible copy"


class Tool(Protocol):
    """A way to deploy."""

    @property
    def folder(self) -> Path:
        """Where it is run."""
        ...

    def argv(self) -> list[str]:
        """The command line, the same for a first deploy and the next."""
        ...

    def env(self) -> dict[str, str]:
        """What it adds to the environment."""
        ...

    def forget(self) -> None:
        """End what would make the next run warm."""
        ...


class Hsops:
    """``hsops deploy --yes``."""

    def __init__(self, target: Target) -> None:
        self.folder, self.inventory = target.base, target.inventory()

    def argv(self) -> list[str]:
        """The command line."""
        return [sys.executable, "-m", "hsops", "-i", str(self.inventory), "deploy", "--yes"]

    def env(self) -> dict[str, str]:
        """The checkout that is measured."""
        return {"PYTHONPATH": str(ROOT)}

    def forget(self) -> None:
        """It holds no connection."""


def main(words: Sequence[str] = ()) -> None:
    """Measure and print. ``words``: options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--slow-rounds", type=int, default=2, help="of ansible's copy: a minute and more each")
    asked = parser.parse_args(words)
    target = Target(Path(tempfile.mkdtemp(prefix="hsops-bench-")))
    tools: dict[str, Tool] = {
        OURS: Hsops(target),
        COPIES: Ansible(target, COPY, persist=False),
        f"{COPIES}, ControlPersist": Ansible(target, COPY, persist=True),
        "ansible unarchive": Ansible(target, UNARCHIVE, persist=False),
        "ansible unarchive, ControlPersist": Ansible(target, UNARCHIVE, persist=True),
        "pyinfra": Pyinfra(target),
    }
    try:
        deploy(target, OURS, tools[OURS])  # its byte code is there, as pip made that of the others
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in (*tools, FLOOR)}
        for i in range(asked.rounds):
            took[FLOOR].append((0.0, floor(target)))
            for name, tool in tools.items():
                if name.startswith(COPIES) and i < asked.rounds - asked.slow_rounds:
                    continue
                took[name].append(deploy(target, name, tool))
                print(f"{name}: first {took[name][-1][0]:.2f} s, no-op {took[name][-1][1]:.2f} s", flush=True)
        report(took, target)
    finally:
        for tool in tools.values():
            tool.forget()
        target.stop()


def deploy(target: Target, name: str, tool: Tool) -> tuple[float, float]:
    """Seconds of a first deploy and of the next one, both checked."""
    target.reset()
    tool.forget()
    first = timed(tool.argv(), tool.env(), tool.folder)
    before = target.check(name)
    again = timed(tool.argv(), tool.env(), tool.folder)
    if target.check(name) != before:
        raise SystemExit(f"{name} wrote files again")
    return first, again


def floor(target: Target) -> float:
    """Seconds for what a deploy over SSH by a Python program cannot do without."""
    ssh = timed(["ssh", "-F", str(target.config), target.alias, "true"], {}, target.base)
    return ssh + timed([sys.executable, "-c", "import fabric"], {}, target.base)


def timed(argv: list[str], env: dict[str, str], cwd: Path) -> float:
    """Wall-clock seconds of a command that must succeed. Into a file: a shared connection would hold a pipe open."""
    with tempfile.TemporaryFile() as log:
        started = time.monotonic()
        done = subprocess.run(
            argv,
            cwd=cwd,
            env={**os.environ, **COMPILED, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        )
        took = time.monotonic() - started
        if done.returncode:
            log.seek(0)
            raise SystemExit(f"{argv}: status {done.returncode}: {log.read().decode(errors='replace')[-2000:]}")
    return took


def report(took: dict[str, list[tuple[float, float]]], target: Target) -> None:
    """Medians, spread, and what was aimed at. Ratios are medians of the rounds' own: the load drifts between them."""
    size = sum(map(len, target.wanted.values())) >> 10
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {len(took[OURS])} rounds, interleaved")
    print(f"{len(target.wanted)} files, {size} KiB\n")
    print(f"{'seconds, median (min - max)':<36}{'first':>24}{'of hsops':>10}{'no-op':>24}{'of hsops':>10}{'rounds':>8}")
    for name, rows in took.items():
        cells = [_cell(took, name, i) if name != FLOOR or i else " " * 34 for i in (0, 1)] if rows else []
        print(f"{name:<36}{''.join(cells)}{len(rows):>8}")
    peers = {name: _ratio(took, name, 1) for name, rows in took.items() if rows and name not in (OURS, FLOOR)}
    best = min(peers, key=lambda name: peers[name])
    print(f"\nno-op: {peers[best]:.1f} times as fast as the best of them ({best}; goal {GOAL_PEERS:g})")
    print(f"no-op: {1 / _ratio(took, FLOOR, 1):.2f} times the floor (goal {GOAL_FLOOR:g})")


def _cell(took: dict[str, list[tuple[float, float]]], name: str, column: int) -> str:
    seconds = [row[column] for row in took[name]]
    spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} - {max(seconds):.2f})"
    return f"{spread:>24}{_ratio(took, name, column):>10.1f}"


def _ratio(took: dict[str, list[tuple[float, float]]], name: str, column: int) -> float:
    """Of a tool's time to hsops' in the same round, the median. A tool of fewer rounds was in the last ones."""
    ours = took[OURS][-len(took[name]) :]
    return statistics.median(row[column] / mine[column] for row, mine in zip(took[name], ours, strict=True))


if __name__ == "__main__":
    main(sys.argv[1:])
