"""Each rank says once, in a file, whether it captures: silence would look like success."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from .settings import Settings


def say(message: str) -> None:
    """One line for the server's log. Raises nothing: a log on a full disk must cost neither a pass nor a sample."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"hsops_hs_dump: {message}\n")
        sys.stderr.flush()


@dataclass
class Hello:
    """``<dump dir>/hello/<run>.<pid>.json``; written again whenever more is known.

    Args:
        settings: what was deployed.
        sglang: its version.
        rank: of this process; None until torch.distributed tells.
        strategy: the chosen one; empty when none fits.
        reasons: why this rank does not capture, or cannot keep what it captures; empty when all is well.
        facts: anything else worth knowing afterwards.
    """

    settings: Settings
    sglang: str
    rank: int | None = None
    strategy: str = ""
    reasons: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def write(self) -> None:
        """Write the file whole, and a line in the log. A file that cannot be written is one more reason."""
        text = json.dumps(self._told(), indent=1)
        folder = os.path.join(self.settings.dump_dir, "hello")
        path = os.path.join(folder, f"{self.settings.run}.{os.getpid()}.json")
        try:
            os.makedirs(folder, exist_ok=True)
            with open(path + ".tmp", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(path + ".tmp", path)
        except OSError as error:
            self.reasons.append(f"the hello file cannot be written: {error}")
            with contextlib.suppress(OSError):
                os.unlink(path + ".tmp")
        self._log()

    def _told(self) -> dict[str, Any]:
        return {
            "run": self.settings.run,
            "pid": os.getpid(),
            "rank": self.rank,
            "ok": not self.reasons,
            "strategy": self.strategy,
            "reason": "; ".join(self.reasons),
            "sglang": self.sglang,
            "patch": self.settings.identity,
            "boundaries": list(self.settings.boundaries),
            "final": self.settings.final,
            "time": time.time(),
            **self.facts,
        }

    def _log(self) -> None:
        who = f"rank {self.rank}" if self.rank is not None else f"pid {os.getpid()}"
        if self.reasons:
            say(f"{who}: NOT capturing: {'; '.join(self.reasons)}")
        else:
            where = ", ".join(str(k) for k in self.settings.boundaries)
            say(f"{who}: capturing boundaries {where} (final: {self.settings.final}) by {self.strategy}")
