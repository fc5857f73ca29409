"""hsops as a user runs it: a child process, in the foreground or in the background."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Cli:
    """``hsops`` on one inventory, as a child process."""

    inventory: Path

    def argv(self, *words: str) -> list[str]:
        """The command line."""
        return [sys.executable, "-m", "hsops", "--inventory", str(self.inventory), *words]

    def __call__(self, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return subprocess.run(
            self.argv(*words), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout, check=False
        )

    def json(self, *words: str, timeout: float = 300) -> dict[str, Any]:
        """The envelope of a ``--json`` run."""
        envelope: dict[str, Any] = json.loads(self(*words, "--json", timeout=timeout).stdout.splitlines()[-1])
        return envelope

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Run in the background, its output to be read."""
        return subprocess.Popen(
            self.argv(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def changed(self, path: Path, **fields: Any) -> Cli:
        """The same inventory in another file, with fields of its server ``tiny`` changed."""
        content = yaml.safe_load(self.inventory.read_text())
        tiny = content["servers"]["tiny"]
        for name, value in fields.items():
            tiny[name] = {**tiny[name], **value} if isinstance(value, dict) else value
        path.write_text(yaml.safe_dump(content))
        return Cli(path)
