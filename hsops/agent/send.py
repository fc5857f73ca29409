"""Files of the dump folder as frames (``hsops.agent.frames``), over whatever the client reads.

A stream answers one request after the other, each a line ``{"files": [[sample id, offset, size], ...]}``, until there
are no more: connections cost a third of a second, requests nothing. A file is sent from ``offset`` and must be of
``size`` bytes before and after. A file that cannot be sent is a fault of that file, not of the stream.
"""

import json
import os
import re
import stat
import sys
from typing import Any, Protocol

from hsops.agent import frames, protocol

SUFFIX = ".safetensors"
SAMPLE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,159}\Z")
LINE = 1 << 20  # bytes of one request, at most
READ = 1 << 20


class Peer(Protocol):
    """Where requests come from and frames go."""

    def line(self) -> bytes:
        """The next request; empty at the end."""
        ...

    def write(self, data: bytes) -> None:
        """Send, now or with what follows."""
        ...

    def copy(self, handle: int, offset: int, length: int) -> int:
        """Send bytes of a file, after what was written before; returns how many there were to read."""
        ...

    def flush(self) -> None:
        """Send what is still held back."""
        ...


def send(params: "dict[str, Any]") -> None:
    """Serve standard input and output. ``params``: ``folder``. Binary: see ``hsops.agent.frames``."""
    serve(Pipe(), folder_of(params))


def folder_of(params: "dict[str, Any]") -> str:
    """The dump folder of a request."""
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
        for index, (name, offset, size) in enumerate(_files(line)):
            _send_or_say_why(peer, index, os.path.join(folder, name + SUFFIX), offset, size)
        peer.write(frames.pack(frames.DONE))
        peer.flush()


def _files(line: bytes) -> "list[tuple[str, int, int]]":
    """The files of a request, all of them good names: nothing is sent of a request that has a bad one."""
    try:
        files = [(str(name), int(offset), int(size)) for name, offset, size in json.loads(line)["files"]]
    except (ValueError, KeyError, TypeError):
        raise protocol.Refusal("bad-request", f"{line[:200]!r} asks for no files") from None
    for name, _offset, _size in files:
        if not SAMPLE_ID.match(name):
            raise protocol.Refusal("bad-request", f"{name!r} is not a sample's id")
    return files


class Pipe:
    """Standard input and output."""

    def __init__(self) -> None:
        self._out = sys.stdout.buffer

    def line(self) -> bytes:
        """The next request."""
        return sys.stdin.buffer.readline(LINE)

    def write(self, data: bytes) -> None:
        """Held back by the buffer of standard output."""
        self._out.write(data)

    def flush(self) -> None:
        """Empty that buffer."""
        self._out.flush()

    def copy(self, handle: int, offset: int, length: int) -> int:
        """From the file to the pipe without a detour through this process."""
        self._out.flush()
        sent = 0
        while sent < length:
            try:
                count = os.sendfile(self._out.fileno(), handle, offset + sent, length - sent)
            except BrokenPipeError:
                raise
            except OSError:  # a file system or an output that sendfile cannot serve
                return sent + self._through(handle, offset + sent, length - sent)
            if count == 0:
                break
            sent += count
        return sent

    def _through(self, handle: int, offset: int, length: int) -> int:
        sent = 0
        while sent < length:
            try:
                data = os.pread(handle, min(READ, length - sent), offset + sent)
            except OSError:  # a fault inside a frame: the caller fills it up and says so
                break
            if not data:
                break
            self._out.write(data)
            sent += len(data)
        return sent


def _send_or_say_why(peer: Peer, index: int, path: str, offset: int, size: int) -> None:
    handle = -1
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        before = os.fstat(handle)
    except OSError as error:
        code = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
        fault = (code, "the file is not in the dump folder" if code == "missing" else f"{error.strerror or error}")
    else:
        if not stat.S_ISREG(before.st_mode):
            fault = ("unreadable", "not a regular file")
        elif before.st_size != size:
            fault = ("changed", f"the file has {before.st_size} bytes, the manifest says {size}")
        elif _send_bytes(peer, handle, index, offset, size) and _is_as(before, path):
            return peer.write(frames.pack(frames.END, index, size, 2) + b"{}")
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
    return _identity(before) == _identity(after)


def _identity(found: os.stat_result) -> "tuple[int, ...]":
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _send_bytes(peer: Peer, handle: int, index: int, offset: int, size: int) -> bool:
    """Send [offset, size) as data frames; False when the file got shorter (a begun frame is filled with zeros)."""
    while offset < size:
        length = min(frames.LARGEST, size - offset)
        peer.write(frames.pack(frames.DATA, index, offset, length))
        sent = peer.copy(handle, offset, length)
        if sent < length:
            peer.write(bytes(length - sent))
            return False
        offset += length
    return True
