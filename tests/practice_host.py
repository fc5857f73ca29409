"""A host for tests of changes: this machine, with an interpreter that has a small SGLang of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsops.remote.agent import Agent
from hsops.remote.local import LocalHost
from tests.unit.sources import REGISTRY

INVENTORY = """\
hosts:
  here: {{ ssh: local, python: {python}, state_dir: {state} }}
servers:
  tiny: {{ host: here, model: hub/none, patches: [hs-dump] }}
patches:
  hs-dump: {{ boundaries: [1, 3] }}
default: tiny
"""


@dataclass(frozen=True)
class PracticeHost:
    """The host ``here`` of the inventory in ``folder``; ``site``: the folder that its SGLang lies in."""

    folder: Path
    site: Path

    @property
    def inventory(self) -> Path:
        """The inventory's file."""
        return self.folder / "inventory.yaml"

    @property
    def state(self) -> Path:
        """The host's state_dir."""
        return self.folder / "state"

    @property
    def python(self) -> str:
        """The interpreter that has the SGLang."""
        return str(self.folder / "venv/bin/python")

    def agent(self, lock_wait: float = 10.0) -> Agent:
        """Its agent."""
        return Agent(LocalHost("here"), python=self.python, state_dir=str(self.state), lock_wait=lock_wait)

    def command(self, *words: str) -> list[str]:
        """An argv of hsops."""
        return [sys.executable, "-m", "hsops", *words]

    def hsops(self, *words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run hsops there to its end."""
        done = subprocess.run(
            self.command(*words), cwd=self.folder, env=ENV, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=60, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start hsops there."""
        return subprocess.Popen(
            self.command(*words), cwd=self.folder, env=ENV, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def tree(self) -> dict[str, Any]:
        """Every file of the site: mode, time stamp and bytes; None for a folder."""
        found = {}
        for path in sorted(self.site.rglob("*")):
            told = path.stat()
            plain = (told.st_mode, told.st_mtime_ns, path.read_bytes()) if path.is_file() else None
            found[str(path.relative_to(self.site))] = plain
        return found


ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


def practice_host(folder: Path) -> PracticeHost:
    """Make one in ``folder``."""
    folder.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=60)
    (site,) = (folder / "venv").glob("lib/python3*/site-packages")
    (site / "sglang/srt/models").mkdir(parents=True)
    (site / "sglang/__init__.py").touch()
    (site / "sglang/version.py").write_text('__version__ = "0.5.9"\n')
    (site / "sglang/srt/models/registry.py").write_text(REGISTRY)
    text = INVENTORY.format(python=folder / "venv/bin/python", state=folder / "state")
    (folder / "inventory.yaml").write_text(text)
    return PracticeHost(folder, site)
