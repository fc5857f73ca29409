"""Files that somebody else made: opened without ever waiting for one that is none."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from hsops.core.errors import BadDataError

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def open_file(path: Path, *, fix: str = "") -> BinaryIO:
    """A regular file, or a link to one, for reading.

    Args:
        path: of the file; a device is not even opened, which may do something.
        fix: of the error.

    Raises:
        BadDataError: it is a pipe, a folder, a device or a socket: to read those may last for ever.
        OSError: it cannot be opened.
    """
    _demand_file(path, path.stat().st_mode, fix)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # it may have become a pipe meanwhile
    try:
        _demand_file(path, os.fstat(handle).st_mode, fix)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _demand_file(path: Path, mode: int, fix: str) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise BadDataError(f"{path} is {kind}, not a file", fix=fix)
