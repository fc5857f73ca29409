"""The dump folder on the host: what the manifest says, what is new in it, and the files themselves.

The manifest's lines are passed on as they are: ``hsops.core.dumps`` is their one reader.
"""

import json
import os
import re
import stat
import sys
import time
from typing import Any, BinaryIO

from hsops.agent import facts, frames, procs, protocol

MANIFEST = "manifest.jsonl"
SUFFIX = ".safetensors"
SAMPLE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,159}\Z")

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


def send(params: "dict[str, Any]") -> None:
    """Files as frames on standard output (binary: see ``hsops.agent.frames``).

    ``params``: ``folder``; ``files``, a list of [sample id, offset, size]: the file is sent from ``offset`` and must
    be of ``size`` bytes before and after. A file that cannot be sent is a fault of that file, not of the stream.
    """
    folder, out = _folder(params), sys.stdout.buffer
    out.write(frames.MAGIC)
    for index, (name, offset, size) in enumerate(params["files"]):
        if not isinstance(name, str) or not SAMPLE_ID.match(name):
            raise protocol.Refusal("bad-request", f"{name!r} is not a sample's id")
        _send_or_say_why(out, index, os.path.join(folder, name + SUFFIX), offset, size)
    out.write(frames.pack(frames.DONE))
    out.flush()


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


def _send_or_say_why(out: BinaryIO, index: int, path: str, offset: int, size: int) -> None:
    try:
        _send_file(out, index, path, offset, size)
    except FileNotFoundError:
        _fault(out, index, "missing", "the file is not in the dump folder")
    except BrokenPipeError:
        raise
    except OSError as error:
        _fault(out, index, "unreadable", f"{error.strerror or error}")


def _send_file(out: BinaryIO, index: int, path: str, offset: int, size: int) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode):
            _fault(out, index, "unreadable", "not a regular file")
        elif before.st_size != size:
            _fault(out, index, "changed", f"the file has {before.st_size} bytes, the manifest says {size}")
        else:
            whole = _send_bytes(out, handle, index, offset, size)
            after = os.stat(path)  # by name: a file that was replaced is another one
            if whole and _identity(before) == _identity(after):
                out.write(frames.pack(frames.END, index, size, 2) + b"{}")
            else:
                _fault(out, index, "changed", "the file changed, or could not be read on, while it was sent")
    finally:
        os.close(handle)


def _identity(found: os.stat_result) -> "tuple[int, ...]":
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _send_bytes(out: BinaryIO, handle: int, index: int, offset: int, size: int) -> bool:
    """Send [offset, size) as data frames; False when the file got shorter (a begun frame is filled with zeros)."""
    while offset < size:
        length = min(frames.LARGEST, size - offset)
        out.write(frames.pack(frames.DATA, index, offset, length))
        out.flush()
        sent = _copy(out, handle, offset, length)
        if sent < length:
            out.write(bytes(length - sent))
            return False
        offset += length
    return True


def _copy(out: BinaryIO, handle: int, offset: int, length: int) -> int:
    """Copy to ``out`` without a detour through this process; returns how much there was to read."""
    sent = 0
    while sent < length:
        try:
            count = os.sendfile(out.fileno(), handle, offset + sent, length - sent)
        except BrokenPipeError:
            raise
        except OSError:  # a file system or an output that sendfile cannot serve
            return sent + _copy_through(out, handle, offset + sent, length - sent)
        if count == 0:
            break
        sent += count
    return sent


def _copy_through(out: BinaryIO, handle: int, offset: int, length: int) -> int:
    sent = 0
    while sent < length:
        try:
            data = os.pread(handle, min(READ, length - sent), offset + sent)
        except OSError:  # a fault inside a frame: the caller fills it up and says so
            break
        if not data:
            break
        out.write(data)
        sent += len(data)
    out.flush()
    return sent


def _fault(out: BinaryIO, index: int, code: str, message: str) -> None:
    body = json.dumps({"code": code, "message": message}).encode()
    out.write(frames.pack(frames.FAULT, index, 0, len(body)) + body)
