"""The ledger beside the local manifest: of which files a host was, or may have been, freed."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from hsops.core.files import make_durable, open_own, open_to_write, sync_folder
from hsops.fetch.plan import File

LEDGER = ".hsops-evicted.jsonl"
_FIX = "move it away, or choose another --to DIR"
_KEYS = ("state", "name", "version", "host", "source")


class Ledger:
    """One line a file and state, appended. Any thread.

    A line is ``copied`` before the host is asked to remove a file, then ``evicted`` or ``kept``.

    Args:
        path: the file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._only: dict[str, str] | None = None

    @property
    def only(self) -> Mapping[str, str]:
        """By name, the version that a host was, or may have been, freed of.

        Raises:
            BadDataError: what has the ledger's name is no file.
        """
        with self._lock:
            if self._only is None:
                self._only = {}
                for line in self._lines():
                    self._note(line["state"], line["name"], line["version"])
            return self._only

    def evicted(self, host: str, source: str) -> dict[str, str]:
        """By name, the versions that this folder of a host was freed of."""
        wanted = ("evicted", host, source)
        return {
            line["name"]: line["version"]
            for line in self._lines()
            if (line["state"], line["host"], line["source"]) == wanted
        }

    def write(self, state: str, files: Collection[File], *, host: str, source: str) -> None:
        """Lines for files, durable on return.

        Raises:
            OSError: the ledger cannot be written.
        """
        now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")
        same = {"time": now, "state": state, "host": host, "source": source}
        lines = [
            same | {key: getattr(f, key) for key in ("name", "version", "bytes", "checksum", "inode")} for f in files
        ]
        if not lines:
            return
        torn = self._ends_torn()
        with os.fdopen(open_to_write(self.path, os.O_APPEND), "w", encoding="utf-8") as file:
            file.write("\n" if torn else "")
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            file.flush()
            make_durable(file.fileno())
        if torn is None:
            sync_folder(self.path.parent)
        self.note(state, files)

    def note(self, state: str, files: Collection[File]) -> None:
        """The ledger has a line of that state for each."""
        with self._lock:
            _ = self.only
            for file in files:
                self._note(state, file.name, file.version)

    def _note(self, state: str, name: str, version: str) -> None:
        assert self._only is not None
        if state in ("copied", "evicted"):  # without an answer a request may have been carried out
            self._only[name] = version
        elif self._only.get(name) == version:
            del self._only[name]

    def _lines(self) -> Iterator[dict[str, str]]:
        """Those that are whole."""
        with suppress(FileNotFoundError), open_own(self.path, fix=_FIX) as file:
            for text in file:
                with suppress(ValueError, KeyError, TypeError):
                    raw = json.loads(text.decode("utf-8", "replace"))
                    yield {key: str(raw[key]) for key in _KEYS}

    def _ends_torn(self) -> bool | None:
        """A kill cut its last line; None: it is not there."""
        try:
            with open_own(self.path, fix=_FIX) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 1))
                return file.read() not in (b"", b"\n")
        except FileNotFoundError:
            return None
