"""The dump folder on the host: what the manifest says, and what is new in it. ``send`` has the files themselves.

The manifest's lines are passed on as they are: ``hsops.core.dumps`` is their one reader.
"""

import os
import time
from typing import Any

from hsops.agent import aside, facts, procs, protocol

MANIFEST = "manifest.jsonl"

POLL_S = 0.05  # the stdlib has no inotify; 20 stat calls a second are not measurable
SPACE_S = 0.25  # also how soon the end of the process is told
BATCH = 500  # lines in one event: about 200 KB
READ = 1 << 20


def list_dumps(params: "dict[str, Any]") -> "dict[str, Any]":
    """The manifest as it is now.

    ``params``: ``folder``. Events: ``lines`` {"lines": [text, ...]}. Result: ``position`` (an object for
    ``dumps-follow``), ``free`` and ``total`` bytes of the file system, ``exists`` (there is a manifest).
    """
    folder = _folder(params)
    aside.left(folder)
    tail = Tail(os.path.join(folder, MANIFEST))
    _emit_lines(tail)
    return {"position": tail.position(), "exists": tail.inode != 0, **_space(folder)}


def follow(params: "dict[str, Any]") -> None:
    """Lines as they are added, until the client goes away.

    ``params``: ``folder``; ``position`` from ``dumps-list`` or none for the start; ``pid`` of a process to watch or
    none. Events: ``lines``; ``space`` {"free", "total"}, four times a second whether it changed or not, so that the
    reader is never blocked for long; ``restarted`` (the manifest was replaced or cut: everything is told again);
    ``gone`` (the process ended, told once).
    """
    watch = _Watch(_folder(params), params.get("position"), params.get("pid"))
    while True:
        watch.look(time.monotonic())
        time.sleep(POLL_S)


class Tail:
    """Whole lines of a file that grows, from a position on.

    Args:
        path: the file; it need not exist yet.
        position: ``position()`` of an earlier tail.
    """

    def __init__(self, path: str, position: "dict[str, int] | None" = None) -> None:
        self.path = path
        self.inode = int(position["inode"]) if position else 0
        self.offset = int(position["offset"]) if position else 0

    def position(self) -> "dict[str, int]":
        """Where the next line starts, and in which file."""
        return {"inode": self.inode, "offset": self.offset}

    def replaced(self) -> bool:
        """Start over if the file is another one than before, or shorter; says whether."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            inode, size = 0, 0
        else:
            inode, size = found.st_ino, found.st_size
        before, was = self.inode, self.offset
        if inode == before and size >= was:
            return False
        self.inode, self.offset = inode, 0
        return before != 0 and was > 0

    def lines(self) -> "list[str]":
        """The next whole lines, up to about ``READ`` bytes of them; a torn last line stays for later."""
        if not self.inode or os.stat(self.path).st_size == self.offset:
            return []
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            data = file.read(READ)
            while b"\n" not in data:
                more = file.read(READ)
                if not more:
                    return []
                data += more
        whole = data[: data.rindex(b"\n") + 1]
        self.offset += len(whole)
        return [line for line in whole.decode("utf-8", "replace").split("\n") if line.strip()]


class _Watch:
    """What ``follow`` has told already and when it must speak again."""

    def __init__(self, folder: str, position: "dict[str, int] | None", pid: "int | None") -> None:
        self.folder, self.pid = folder, pid
        self.tail = Tail(os.path.join(folder, MANIFEST), position)
        self.space_due = 0.0

    def look(self, now: float) -> None:
        """Tell what is new at ``now`` (monotonic seconds)."""
        _emit_lines(self.tail)
        if now >= self.space_due:
            self.space_due = now + SPACE_S
            protocol.emit("space", **_space(self.folder))
            self._tell_end()

    def _tell_end(self) -> None:
        if not self.pid:
            return
        proc = procs.look(self.pid)
        if proc is None or proc.zombie:
            _emit_lines(self.tail)  # what it wrote at the very end comes before the news that it is gone
            protocol.emit("gone", pid=self.pid)
            self.pid = None


def _folder(params: "dict[str, Any]") -> str:
    return os.path.expanduser(str(params["folder"]))


def _space(folder: str) -> "dict[str, int]":
    found = facts.space(folder)
    return {"free": found["free"], "total": found["total"]}


def _emit_lines(tail: Tail) -> None:
    try:
        if tail.replaced():
            protocol.emit("restarted")
        while lines := tail.lines():
            for start in range(0, len(lines), BATCH):
                protocol.emit("lines", lines=lines[start : start + BATCH])
    except FileNotFoundError:  # removed between two looks: the next look starts over
        return
    except BrokenPipeError:
        raise
    except OSError as error:
        raise protocol.Refusal("unreadable", f"{tail.path} cannot be read: {error.strerror}") from None
