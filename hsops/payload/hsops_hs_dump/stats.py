"""What capture does and what it costs, in a file that an operator may look at: ``hello/<run>.<pid>.stats``."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from typing import Any

EVERY_S = 5.0


@dataclass
class Stats:
    """Counted by the scheduler's thread, since the start.

    Args:
        passes, rows: handed over.
        refused: passes that were not taken because the writer did not keep up.
        waits, wait_s: how often and how long the scheduler stood still for room; the longest in ``wait_max_s``.
    """

    passes: int = 0
    rows: int = 0
    refused: int = 0
    waits: int = 0
    wait_s: float = 0.0
    wait_max_s: float = 0.0

    def waited(self, seconds: float) -> None:
        """The scheduler stood still."""
        self.waits += 1
        self.wait_s += seconds
        self.wait_max_s = max(self.wait_max_s, seconds)


class StatsFile:
    """Written whole, at most every five seconds, and only when something changed. Raises nothing.

    Args:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        self._path, self._written, self._next = path, "", 0.0

    def write(self, stats: Stats, more: dict[str, Any], *, now: bool = False) -> None:
        """Tell the counters.

        Args:
            stats: the scheduler's.
            more: the others.
            now: do not wait for the five seconds to be over.
        """
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        counters = {**asdict(stats), **more}
        text = json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in counters.items()})
        if text == self._written:
            return
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(self._path + ".tmp", "w", encoding="utf-8") as file:
                file.write(text + "\n")
            os.replace(self._path + ".tmp", self._path)
            self._written = text
        except OSError:
            pass  # a full folder is told by the samples that fail
