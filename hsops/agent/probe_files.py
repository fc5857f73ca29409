"""Where the output of a run goes, and what lies in its log."""

import os
import time
from typing import Any, BinaryIO

HEAD = 512 << 10
TAIL = 128 << 10
_COUNT_LIMIT = 1 << 30


def targets(pid: int) -> "dict[str, str]":
    """What the standard input, output and error of a process are; ``?`` where it may not be read."""
    return {fd: _link(f"/proc/{pid}/fd/{fd}") for fd in "012"}


def log_state(path: str) -> "dict[str, Any]":
    """Size, age and lines of a log, its beginning and its end as text.

    ``head`` and ``tail`` are cut at 512 and 128 KiB; ``tail`` is empty when ``head`` holds everything.
    Raises OSError when there is no such file.
    """
    path = os.path.expanduser(path)
    with open(path, "rb") as file:
        stat = os.fstat(file.fileno())
        head = file.read(HEAD)
        tail = b""
        if stat.st_size > len(head):
            file.seek(max(len(head), stat.st_size - TAIL))
            tail = file.read(TAIL)
        lines = _lines(file)
    return {
        "path": path,
        "real": os.path.realpath(path),
        "size": stat.st_size,
        "changed": round(time.time() - stat.st_mtime, 1),
        "lines": lines,
        "head": head.decode("utf-8", "replace"),
        "tail": tail.decode("utf-8", "replace"),
    }


def size(path: str) -> int:
    """Bytes of a file now; -1 when it is gone."""
    try:
        return os.stat(os.path.expanduser(path)).st_size
    except OSError:
        return -1


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except PermissionError:
        return "?"
    except OSError:
        return "closed"


def _lines(file: BinaryIO) -> "int | None":
    """Lines of the whole file; None above 1 GiB, where counting would take too long."""
    if os.fstat(file.fileno()).st_size > _COUNT_LIMIT:
        return None
    file.seek(0)
    return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))
