"""Stretches of files below one folder as frames (``hsops.agent.frames``), over whatever the client reads.

A stream answers one request after the other, each a line ``{"files": [[name, start, end, size, sum_from], ...], "sum":
kind}``, until there are no more: connections cost a third of a second, requests nothing. A file must be of ``size``
bytes before and after. With ``sum_from`` >= 0 its end carries a checksum of [sum_from, end), of that kind or of the one
that this Python has. A file that cannot be sent is a fault of that file, not of the stream.
"""

import hashlib
import json
import os
import stat
import sys
import zlib
from typing import Any, Protocol

from hsops.agent import frames, protocol

LINE = 1 << 20  # bytes of one request, at most
READ = 1 << 20
HELD = 1 << 18  # bytes before a pipe is written to: small files cost a system call less each
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Sum:
    """A checksum of stretches of files: ``xxh3`` where Python has it, ``sha256`` when asked for, else ``crc32``."""

    def __init__(self, kind: str) -> None:
        self.kind, self._crc, self._digest = "crc32", 0, None  # type: tuple[str, int, Any]
        if kind == "sha256":
            self.kind, self._digest = kind, hashlib.sha256()
        elif kind == "xxh3":
            try:
                import xxhash
            except ImportError:
                return
            self.kind, self._digest = kind, xxhash.xxh3_64()

    def update(self, data: "bytes | memoryview") -> None:
        """Add bytes."""
        if self._digest is None:
            self._crc = zlib.crc32(data, self._crc)
        else:
            self._digest.update(data)

    def read(self, handle: int, start: int, end: int) -> None:
        """Add a stretch of a file, as far as there is one."""
        while start < end and (data := os.pread(handle, min(READ, end - start), start)):
            self.update(data)
            start += len(data)

    def __str__(self) -> str:
        """``kind:hex``."""
        return f"{self.kind}:" + (f"{self._crc:08x}" if self._digest is None else self._digest.hexdigest())


class Peer(Protocol):
    """Where requests come from and frames go."""

    def line(self) -> bytes:
        """The next request; empty at the end."""
        ...

    def write(self, data: bytes) -> None:
        """Send, now or with what follows."""
        ...

    def copy(self, handle: int, offset: int, length: int, total: "Sum | None") -> int:
        """Send bytes of a file and sum them up, after what was written before; returns how many there were to read."""
        ...

    def flush(self) -> None:
        """Send what is still held back."""
        ...


def send(params: "dict[str, Any]") -> None:
    """Serve standard input and output. ``params``: ``folder``. Binary: see ``hsops.agent.frames``."""
    peer = Pipe()
    try:
        serve(peer, folder_of(params))
    finally:
        peer.flush()  # before what is said about an error


def folder_of(params: "dict[str, Any]") -> str:
    """The folder of a request."""
    return os.path.expanduser(str(params["folder"]))


def serve(peer: Peer, folder: str) -> None:
    """Answer requests until their end.

    Raises:
        protocol.Refusal: a request makes no sense.
        OSError: the peer is gone.
    """
    peer.write(frames.MAGIC)
    peer.flush()
    while line := peer.line():
        kind, files = _request(line)
        paths = [path_of(folder, name) for name, *_ in files]  # nothing is sent of a request that has a bad one
        for index, (path, (_, start, end, size, sum_from)) in enumerate(zip(paths, files)):  # noqa: B905 - as long
            small = start == 0 and end == size <= frames.SMALL
            if not (small and _send_small(peer, index, path, size, Sum(kind) if sum_from >= 0 else None)):
                total = Sum(kind) if sum_from >= 0 else None
                _send_or_say_why(peer, index, path, (start, end, size, sum_from), total)
        peer.write(frames.pack(frames.DONE))
        peer.flush()


def path_of(folder: str, name: str) -> str:
    """A file below ``folder`` by its name there.

    Raises:
        protocol.Refusal: the name leads elsewhere.
    """
    if "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise protocol.Refusal("bad-request", f"{name!r} is no name of a file below {folder}")
    return f"{folder}/{name}"


def _request(line: bytes) -> "tuple[str, list[tuple[str, int, int, int, int]]]":
    """The kind of checksum and the stretches that are asked for."""
    try:
        asked = json.loads(line)
        files = [(str(n), int(start), int(end), int(size), int(s)) for n, start, end, size, s in asked["files"]]
        return str(asked["sum"]), files
    except (ValueError, KeyError, TypeError):
        raise protocol.Refusal("bad-request", f"{line[:200]!r} asks for no files") from None


class Pipe:
    """Standard input and output."""

    def __init__(self) -> None:
        self._out = os.fdopen(1, "wb", HELD, closefd=False)

    def line(self) -> bytes:
        """The next request."""
        return sys.stdin.buffer.readline(LINE)

    def write(self, data: bytes) -> None:
        """Held back by the buffer of standard output."""
        self._out.write(data)

    def flush(self) -> None:
        """Empty that buffer."""
        self._out.flush()

    def copy(self, handle: int, offset: int, length: int, total: "Sum | None") -> int:
        """From the file to the pipe, without a detour through this process unless it must be summed up."""
        if total is not None:
            return self._through(handle, offset, length, total)
        self._out.flush()
        sent = 0
        while sent < length:
            try:
                count = os.sendfile(self._out.fileno(), handle, offset + sent, length - sent)
            except BrokenPipeError:
                raise
            except OSError:  # a file system or an output that sendfile cannot serve
                return sent + self._through(handle, offset + sent, length - sent, None)
            if count == 0:
                break
            sent += count
        return sent

    def _through(self, handle: int, offset: int, length: int, total: "Sum | None") -> int:
        sent = 0
        while sent < length:
            try:
                data = os.pread(handle, min(READ, length - sent), offset + sent)
            except OSError:  # a fault inside a frame: the caller fills it up and says so
                break
            if not data:
                break
            if total is not None:
                total.update(data)
            self._out.write(data)
            sent += len(data)
        return sent


def _send_small(peer: Peer, index: int, path: str, size: int, total: "Sum | None") -> bool:
    """A whole file in one frame; False: there is something about it that the long way tells."""
    try:
        handle = os.open(path, _FLAGS)
    except OSError:
        return False
    try:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode) or before.st_size != size or before.st_mtime_ns < 0:
            return False
        data = os.read(handle, size)
        if len(data) != size or identity(os.fstat(handle)) != identity(before):
            return False
    except OSError:
        return False
    finally:
        os.close(handle)
    words = b""
    if total is not None:
        total.update(data)
        words = str(total).encode()
    head = frames.pack(frames.WHOLE, index, before.st_mtime_ns, size)
    peer.write(head + frames.WHOLE_HEAD.pack(before.st_ino, len(words)) + words + data)
    return True


def _send_or_say_why(
    peer: Peer, index: int, path: str, stretch: "tuple[int, int, int, int]", total: "Sum | None"
) -> None:
    start, end, size, sum_from = stretch
    handle = -1
    try:
        handle = os.open(path, _FLAGS)
        before = os.fstat(handle)
        if total is not None and stat.S_ISREG(before.st_mode):
            total.read(handle, sum_from, start)
    except OSError as error:
        code = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
        fault = (code, "the file is not in the folder" if code == "missing" else f"{error.strerror or error}")
    else:
        if not stat.S_ISREG(before.st_mode):
            fault = ("unreadable", "not a regular file")
        elif before.st_size != size:
            fault = ("changed", f"the file has {before.st_size} bytes, {size} were expected")
        elif _send_bytes(peer, handle, index, (start, end), total) and _is_as(before, path):
            found = {"ino": before.st_ino, "mtime_ns": before.st_mtime_ns, "sum": "" if total is None else str(total)}
            body = json.dumps(found, separators=(",", ":")).encode()
            return peer.write(frames.pack(frames.END, index, end, len(body)) + body)
        else:
            fault = ("changed", "the file changed, or could not be read on, while it was sent")
    finally:
        if handle >= 0:
            os.close(handle)
    body = json.dumps({"code": fault[0], "message": fault[1]}).encode()
    return peer.write(frames.pack(frames.FAULT, index, 0, len(body)) + body)


def _is_as(before: os.stat_result, path: str) -> bool:
    """By name: a file that was replaced is another one."""
    try:
        after = os.stat(path)
    except OSError:
        return False
    return identity(before) == identity(after)


def identity(found: os.stat_result) -> "tuple[int, ...]":
    """What tells that it is the same file, and nobody wrote to it."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _send_bytes(peer: Peer, handle: int, index: int, stretch: "tuple[int, int]", total: "Sum | None") -> bool:
    """Send a stretch as data frames; False when the file got shorter (a begun frame is filled with zeros)."""
    offset, end = stretch
    while offset < end:
        length = min(frames.LARGEST, end - offset)
        peer.write(frames.pack(frames.DATA, index, offset, length))
        sent = peer.copy(handle, offset, length, total)
        if sent < length:
            peer.write(bytes(length - sent))
            return False
        offset += length
    return True
