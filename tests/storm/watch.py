"""Looks at both ends all the time: no torn file has its name, none is gone there that is not safe here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hsops.core.checksum import checksum_of, kind_of

TICK_S = 0.01


class Watcher:
    """A thread. Every file of the target is read once for each inode and time that it has.

    Args:
        source, to: the host's folder and the local one.
        good: the checksums that a file may have, by name; added to when the source is rewritten.
    """

    def __init__(self, source: Path, to: Path, good: dict[str, set[str]]) -> None:
        self.source, self.to, self.good = source, to, good
        self.torn, self.early, self.looks = list[str](), list[str](), 0
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The last look."""
        self._stop.set()
        self._thread.join()
        self.look()

    def look(self) -> None:
        """Once. The source first: what is gone there must be here already."""
        with self._lock:
            gone = [name for name in self.good if not (self.source / name).exists()]
            for path in list(self.to.glob("*.safetensors")):
                self._look_at(path)
            self.early += [name for name in gone if name not in self._seen or not (self.to / name).exists()]
            self.looks += 1

    @contextmanager
    def closed_eyes(self) -> Iterator[None]:
        """While the target is emptied and the source filled."""
        with self._lock:
            self._seen.clear()
            yield

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            self.look()

    def _look_at(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            found = path.stat()
            known = found.st_ino, found.st_size, found.st_mtime_ns
            if self._seen.get(path.name) == known:
                return
            sums = self.good[path.name]
            if checksum_of(path, kind_of(next(iter(sums)))) not in sums:
                self.torn.append(path.name)
            self._seen[path.name] = known
