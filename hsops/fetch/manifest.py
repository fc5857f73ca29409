"""The local manifest: the host's line of each file that is whole and durable here, and what its inode told then."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from hsops.core.files import make_durable, open_own, open_to_write, sync_folder
from hsops.fetch.plan import File, Held, Stamp

LOCAL = "local"  # the key that a local line has besides the host's
_ESCAPED = "backslashreplace"  # half a character of a host's line, as JSON writes it
_FIX = "move it away, or choose another --to DIR"


class Manifest:
    """Lines, appended; written anew to leave some out. One thread plans while another makes files durable.

    Args:
        path: the file; it need not exist.
        parse: a line of it; None: it is torn or not ours.
    """

    def __init__(self, path: Path, parse: Callable[[str], Held | None]) -> None:
        self.path, self._parse = path, parse
        self._lines = dict[str, str]()
        self._lock = threading.RLock()
        self._exists = path.exists()

    def read(self) -> tuple[dict[str, Held], bool]:
        """By name; and whether lines are torn, unreadable or superseded, so that it is to be written anew.

        Raises:
            BadDataError: what has its name is no file, or not to be read.
        """
        try:
            with open_own(self.path, fix=_FIX) as file:
                text = file.read().decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return {}, False
        *lines, torn = text.split("\n")
        held, untidy, self._lines = dict[str, Held](), bool(torn), {}
        for line in lines:
            entry = self._parse(line)
            untidy = untidy or entry is None or entry.file.name in held
            if entry is not None:
                held[entry.file.name] = entry
                self._lines[entry.file.name] = line
        return held, untidy

    def held(self, names: Collection[str]) -> dict[str, Held]:
        """What it says of these, as far as it is known."""
        with self._lock:
            return {n: h for n in names if n in self._lines and (h := self._parse(self._lines[n]))}

    def forget(self, names: Collection[str]) -> None:
        """Write it anew without ``names``: it must not name a file that is about to be replaced."""
        with self._lock:
            self._lines = {name: line for name, line in self._lines.items() if name not in names}
            self._write()

    def append(self, lines: Mapping[str, str]) -> None:
        """Lines by the names of files that are whole and in place; durable on return."""
        with self._lock:
            with os.fdopen(open_to_write(self.path, os.O_APPEND), "w", encoding="utf-8", errors=_ESCAPED) as file:
                file.write("".join([line + "\n" for line in lines.values()]))
                file.flush()
                make_durable(file.fileno())
            self._lines.update(lines)
            if not self._exists:  # its own name
                sync_folder(self.path.parent)
                self._exists = True

    def _write(self) -> None:
        temporary = self.path.with_name(f".{self.path.name}.new")
        temporary.unlink(missing_ok=True)  # whatever it is: a pipe of that name would be written to, or waited for
        with temporary.open("x", encoding="utf-8", errors=_ESCAPED) as file:
            file.writelines(line + "\n" for line in self._lines.values())
            file.flush()
            make_durable(file.fileno())
        temporary.replace(self.path)
        sync_folder(self.path.parent)


def line_of(file: File, found: os.stat_result) -> str:
    """The host's line and what is known here: of two keys that are alike the last one counts."""
    local = f'{{"size":{found.st_size},"mtime_ns":{found.st_mtime_ns},"ctime_ns":{found.st_ctime_ns}}}'
    return f'{file.line.rstrip()[:-1]},"checksum":"{file.checksum}","{LOCAL}":{local}}}'


def stamp_of(file: Path | os.DirEntry[str]) -> Stamp:
    """The stamp of a file itself, not of what a link points to."""
    found = file.lstat() if isinstance(file, Path) else file.stat(follow_symlinks=False)
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def stamp_from(raw: Any) -> Stamp | None:
    """The stamp of a manifest line; None: there is none, or it is not ours, and the file will be checked."""
    try:
        return Stamp(**raw)
    except TypeError:
        return None
