"""``manifest.jsonl``: the line is what says that a dump is whole."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections import deque
from typing import Any

from .files import FILE_MODE, SUFFIX
from .hello import say

MANIFEST = "manifest.jsonl"
KEPT = 10_000  # lines that wait for a manifest that cannot be written


class Ledger:
    """Brings lines into the manifest, in order and whoever brings them; what cannot be written now is tried again.

    Args:
        folder: of the dumps.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: str) -> None:
        self._folder, self._manifest = folder, Manifest(folder)
        self._waiting: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()

    def add(self, line: dict[str, Any]) -> None:
        """Write a line, or keep it for ``flush``. Raises nothing."""
        with self._lock:
            if len(self._waiting) == KEPT:
                say(f"{KEPT} lines wait for the manifest: that of {self._waiting[0]['id']} is lost")
                self._waiting.popleft()
            self._waiting.append(line)
            self._flush(fresh=len(self._waiting) == 1)

    @property
    def waiting(self) -> int:
        """Lines that could not be written yet."""
        return len(self._waiting)

    def flush(self) -> None:
        """Try the lines that could not be written again."""
        with self._lock:
            if self._waiting:
                self._flush(fresh=False)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._manifest.close()

    def _flush(self, *, fresh: bool) -> None:
        while self._waiting:
            line = self._waiting[0] if fresh else self._still_true(self._waiting[0])
            try:
                self._manifest.append(line)
            except OSError as error:
                if fresh:
                    say(f"the manifest cannot be written, its lines wait: {error}")
                return
            self._waiting.popleft()

    def _still_true(self, line: dict[str, Any]) -> dict[str, Any]:
        """A line that waited speaks of a file that somebody may have removed since."""
        if line["status"] != "ok":
            return line
        try:
            if os.stat(os.path.join(self._folder, line["id"] + SUFFIX)).st_size == line["bytes"]:
                return line
        except OSError:
            pass
        return {**line, "status": "failed", "reason": "the dump was removed before the manifest could be written"}


class Manifest:
    """``manifest.jsonl``: one line a sample, appended by one write so that lines never mix.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, MANIFEST)
        self._handle = self._open()

    def append(self, line: dict[str, Any]) -> None:
        """Add one line, or nothing."""
        if not self._in_place():  # the folder was emptied or moved under the server: lines must not go into nowhere
            self.close()
            self._handle = self._open()
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        before = os.fstat(self._handle).st_size
        if os.write(self._handle, data) != len(data):
            os.ftruncate(self._handle, before)  # or the next line would be glued to what there is of this one
            raise OSError(errno.ENOSPC, "the manifest's line was cut: no space left")

    def close(self) -> None:
        """Close the file."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def _open(self) -> int:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":  # the last run died in the middle of a line
            os.write(handle, b"\n")
        return handle

    def _in_place(self) -> bool:
        if self._handle < 0:
            return False
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._handle))
        except FileNotFoundError:
            return False
