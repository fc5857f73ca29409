"""A lab of a test's own, driven as a user would: by the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MINUTES = 60.0


@dataclass(frozen=True)
class Practice:
    """A lab that is up, and an inventory for it that a test may change."""

    home: Path
    inventory: Path

    def run(self, *words: str, timeout: float = 2 * MINUTES) -> subprocess.CompletedProcess[str]:
        """``hsops -i <inventory> WORDS``, with nobody at the keyboard."""
        return hsops("-i", str(self.inventory), *words, cwd=self.home.parent, timeout=timeout)

    def do(self, *words: str, timeout: float = 2 * MINUTES) -> dict[str, Any]:
        """As ``run`` with ``--json``: the envelope's data. It must succeed."""
        done = self.run("--json", *words, timeout=timeout)
        assert done.returncode == 0, f"{' '.join(words)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        envelope: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        data: dict[str, Any] = envelope["data"]
        return data

    def change(self, section: str, name: str, **fields: Any) -> None:
        """Change fields of one entry of the inventory; mappings are merged."""
        held = yaml.safe_load(self.inventory.read_text())
        entry = held[section][name]
        for key, value in fields.items():
            entry[key] = {**entry.get(key, {}), **value} if isinstance(value, dict) else value
        self.inventory.write_text(yaml.safe_dump(held))

    @property
    def python(self) -> Path:
        """The interpreter that runs SGLang."""
        return self.home / "venv/bin/python"

    @property
    def site(self) -> Path:
        """The folder that sglang lies in."""
        (found,) = (self.home / "venv/lib").glob("python3*/site-packages")
        return found

    @property
    def model(self) -> Path:
        """The tiny model's folder."""
        return Path(yaml.safe_load(self.inventory.read_text())["servers"]["tiny"]["model"])

    @property
    def tp(self) -> int:
        """Ranks of its server."""
        return int(yaml.safe_load(self.inventory.read_text())["servers"]["tiny"]["tp"])

    @property
    def dumps(self) -> Path:
        """Where the ranks of its server write."""
        return self.home / "dumps/tiny"


@contextmanager
def practice(folder: Path, *, sglang: str, tp: int, model: str = "deepseek") -> Iterator[Practice]:
    """A lab in ``folder`` while the context is open; nothing of it runs afterwards."""
    home = folder / "lab"
    words = ("--home", str(home), "--sglang", sglang, "--tp", str(tp), "--model", model)
    up = hsops("lab", "up", *words, cwd=folder, timeout=15 * MINUTES)
    assert up.returncode == 0, up.stderr
    inventory = folder / "inventory.yaml"
    inventory.write_text((home / "inventory.yaml").read_text())
    try:
        yield Practice(home, inventory)
    finally:
        down = hsops("lab", "down", "--home", str(home), "--purge", cwd=folder)
        assert down.returncode == 0, down.stderr


def hsops(*words: str, cwd: Path, timeout: float = 2 * MINUTES) -> subprocess.CompletedProcess[str]:
    """The program itself."""
    command = [sys.executable, "-m", "hsops", *words]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout,
        check=False,
        env=env,
    )
