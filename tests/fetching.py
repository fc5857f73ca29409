"""A host with dumps and a folder to fetch them to, through the real command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsops.core.dumps import MANIFEST, latest, parse_sample
from hsops.core.inventory import HostSpec
from tests.conftest import inventory_text
from tests.dump_maker import make_big

SERVER = """\
servers: {{ tiny: {{ host: {host}, model: /m, patches: [hs-dump] }} }}
patches: {{ hs-dump: {{ boundaries: [1, 3] }} }}
"""
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Place:
    """One test's host and target.

    Args:
        inventory: names the host and a server ``tiny`` on it.
        source: the server's dump folder on the host.
        to: where fetch writes.
    """

    inventory: Path
    source: Path
    to: Path

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start ``hsops WORDS``."""
        command = [sys.executable, "-m", "hsops", "-i", str(self.inventory), *words]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def start_fetch(self, *words: str) -> subprocess.Popen[str]:
        """Start a fetch that tells its events."""
        return self.start("fetch", "--to", str(self.to), "--json", *words)

    def fetch(self, *words: str, expect: int = 0) -> dict[str, Any]:
        """Fetch to the end; returns the envelope."""
        return envelope(self.start_fetch(*words), expect)

    def verify(self, *words: str, expect: int = 0) -> dict[str, Any]:
        """Verify the target; returns the envelope."""
        return envelope(self.start("verify", str(self.to), "--json", *words), expect)

    def missing(self) -> int:
        """Bytes that a fetch has to send, by what lies in the target."""
        samples = latest(parse_sample(line) for line in (self.source / MANIFEST).read_text().splitlines())
        left = 0
        for sample in samples.values():
            whole, parts = self.to / sample.file, list(self.to.glob(f"{sample.file}.*.part"))
            here = sample.bytes if whole.exists() else sum(p.stat().st_size for p in parts)
            left += sample.bytes - here
        return left

    def assert_nothing_torn(self) -> None:
        """At any moment: a dump under its own name is whole, and the manifest's whole lines name only such."""
        for file in self.to.glob("*.safetensors"):
            assert file.read_bytes() == (self.source / file.name).read_bytes(), file.name
        if (self.to / MANIFEST).exists():
            *lines, _torn = (self.to / MANIFEST).read_text().split("\n")
            for line in lines:
                assert (self.to / parse_sample(line).file).exists()


def place(host: HostSpec, tmp_path: Path, *sizes: int) -> Place:
    """A place whose host has one dump for each size in bytes."""
    inventory = tmp_path / "inventory.yaml"
    host = host.model_copy(update={"dumps": str(tmp_path / "dumps")})
    inventory.write_text(inventory_text(host) + SERVER.format(host=host.name))
    source = tmp_path / "dumps" / "tiny"
    for i, size in enumerate(sizes):
        make_big(source, f"s{i}", size)
    return Place(inventory, source, tmp_path / "to")


def envelope(process: subprocess.Popen[str], expect: int) -> dict[str, Any]:
    """The last line of a command's output, when it ended as expected."""
    out, err = process.communicate(timeout=100)
    assert process.returncode == expect, (process.returncode, out[-3000:], err[-3000:])
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def wait_for(true: Callable[[], bool], what: str, patience: float = 60.0) -> None:
    """Look every few milliseconds until ``true``; the deadline is the failure."""
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen in {patience:g} s"
        time.sleep(0.002)


def received(here: Place) -> int:
    """Bytes of dumps in the target, whole or not."""
    total = 0
    for file in here.to.glob("*.safetensors*"):
        with suppress(FileNotFoundError):  # a part file gets its name while we look; the next look counts it
            total += file.stat().st_size
    return total


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL, as the OOM killer does."""
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
