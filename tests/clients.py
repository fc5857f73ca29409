"""hsops as a child process whose output goes to files, to be watched while it works."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.hosts import run_dir

PATIENCE_S = 90.0 + 2 * float(os.environ.get("HSOPS_CUT_S", "0"))


@dataclass
class Client:
    """One hsops at work."""

    child: subprocess.Popen[bytes]
    out: Path

    @property
    def errors(self) -> str:
        """What it told people."""
        return self.out.with_suffix(".err").read_text()

    def until(self, seen: Callable[[], bool]) -> None:
        """Wait for something to be seen of it."""
        deadline = time.monotonic() + PATIENCE_S
        while not seen():
            assert self.child.poll() is None, self.errors
            assert time.monotonic() < deadline, self.errors
            time.sleep(0.02)

    def until_grown(self) -> None:
        """Until more of the log has come."""
        size = self.out.stat().st_size
        self.until(lambda: self.out.stat().st_size > size)

    def end(self, patience: float = PATIENCE_S) -> int:
        """Its exit code, within ``patience`` seconds."""
        return self.child.wait(patience)


def begin(out: Path, inventory: Path, *words: str, inside: tuple[str, ...] = ()) -> Client:
    """Start hsops, its output to ``out`` and ``out.err``; ``inside``: words before it."""
    argv = [*inside, sys.executable, "-m", "hsops", "-i", str(inventory), *words]
    with out.open("wb") as stdout, out.with_suffix(".err").open("wb") as stderr:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=run_dir())
    return Client(child, out)


def until_lost(*clients: Client) -> None:
    """Until each has noticed that its link is gone."""
    for client in clients:
        client.until(lambda client=client: "trying again" in client.errors)  # type: ignore[misc]
