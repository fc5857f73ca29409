"""The folder that is exported to: whole files under their names, and a journal that says what each of them is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsops.core.errors import UsageError
from hsops.core.files import locked_folder, open_file, sync_file, sync_folder
from hsops.export.place import LINK

JOURNAL = "hsops-export.jsonl"
FORMAT = "hsops-export/1"
_PART = ".part"


@dataclass(frozen=True, slots=True)
class Entry:
    """What the journal says of a file.

    Args:
        key: of everything that its content depends on.
        bytes, mtime_ns: of the file when it was whole.
    """

    key: str
    bytes: int
    mtime_ns: int


class Target:
    """One export's folder, locked for this process by ``open_target``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = dict[str, Entry]()

    def whole(self, file: str, key: str) -> bool:
        """The file is there, untouched, and would be written the same again."""
        entry = self.entries.get(file)
        if entry is None or entry.key != key:
            return False
        try:
            found = (self.path / file).lstat()
        except OSError:
            return False
        return (found.st_size, found.st_mtime_ns) == (entry.bytes, entry.mtime_ns)

    def put(self, file: str, write: Callable[[Path], str]) -> str:
        """Make a file: written beside, durable, then renamed. From any thread, one for a file.

        Args:
            file: its name below the folder.
            write: given the path to write to, which does not exist; says how it was made; empty: keep nothing.

        Returns:
            What ``write`` said.
        """
        whole = self.path / file
        part = whole.with_name(f".{whole.name}{_PART}")
        whole.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        try:
            if way := write(part):
                if way != LINK:  # which is as durable as what it links to
                    sync_file(part)
                part.replace(whole)
            return way
        finally:
            part.unlink(missing_ok=True)

    def record(self, file: str, key: str, **about: Any) -> None:
        """Say in the journal that the file is whole."""
        found = (self.path / file).lstat()
        entry = Entry(key, found.st_size, found.st_mtime_ns)
        self._append({"file": file, "key": key, "bytes": entry.bytes, "mtime_ns": entry.mtime_ns, **about})
        self.entries[file] = entry

    def remove(self, file: str) -> None:
        """Take a file away, if it is there."""
        (self.path / file).unlink(missing_ok=True)

    def tidy(self, keep: Collection[str], is_data: Callable[[str], bool]) -> None:
        """Remove what an earlier export left that this one does not have.

        Args:
            keep: files that are to be here.
            is_data: whether a trainer would take a file of this name for a sample.

        Raises:
            UsageError: there is data that no export wrote.
        """
        strays = list[str]()
        for folder, _, names in os.walk(self.path):
            for name in names:
                file = os.path.relpath(os.path.join(folder, name), self.path)  # noqa: PTH118 - a name below the folder
                if name.startswith(".") and name.endswith(_PART):
                    self.remove(file)
                elif file not in keep and is_data(file):
                    strays.append(file)
        if foreign := [file for file in strays if file not in self.entries]:
            raise UsageError(
                f"{self.path / min(foreign)} was not exported by hsops, and trainers would read it",
                fix="move it away, or choose another --to DIR",
            )
        for file in strays:
            self.remove(file)

    def finish(self) -> None:
        """Make all names durable."""
        for folder, _, _ in os.walk(self.path):
            sync_folder(Path(folder))

    def _append(self, line: dict[str, Any]) -> None:
        with (self.path / JOURNAL).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def _start(self, kind: str) -> None:
        try:
            with open_file(self.path / JOURNAL, fix="move it away, or choose another --to DIR") as file:
                text = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            text = ""
        *lines, torn = text.split("\n")
        if not lines:
            self._begin(kind)
            return
        head = _parsed(lines[0])
        if head.get("hsops") != FORMAT or head.get("format") != kind:
            raise UsageError(
                f"{self.path} holds another export: {head.get('format') or 'of another hsops'}, not {kind}",
                fix="choose another --to DIR",
            )
        for line in lines[1:]:
            self._read(_parsed(line))
        if torn:
            os.truncate(self.path / JOURNAL, len("\n".join(lines).encode()) + 1)

    def _begin(self, kind: str) -> None:
        (self.path / JOURNAL).unlink(missing_ok=True)  # a torn first line is none
        if any(self.path.iterdir()):
            raise UsageError(f"{self.path} is not empty, and no export of hsops", fix="choose another --to DIR")
        self._append({"hsops": FORMAT, "format": kind})

    def _read(self, line: dict[str, Any]) -> None:
        """A line that cannot be read says nothing: its file is written again."""
        if isinstance(line.get("file"), str):
            self.entries[line["file"]] = Entry(str(line.get("key")), line.get("bytes", 0), line.get("mtime_ns", 0))


@contextmanager
def open_target(path: Path, kind: str) -> Iterator[Target]:
    """The folder, made when missing, for this process alone.

    Args:
        path: the folder.
        kind: the format.

    Raises:
        UsageError: it cannot be a folder, or holds something else.
        LockedError: another export writes there.
        BadDataError: what is named like its journal is no file.
    """
    with locked_folder(path, "another export writes to"):
        target = Target(path)
        target._start(kind)  # noqa: SLF001 - its other half
        yield target


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
