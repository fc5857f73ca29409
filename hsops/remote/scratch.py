"""Folders for the time of one command, that a client killed by SIGKILL leaves only until the next one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "hsops-scratch-"
_YOUNG_S = 60.0  # its owner may not have locked it yet


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder of our own, removed at the end; so are those whose owner is gone: a lock ends with its process."""
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        held = os.open(name, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(held)


def _sweep(base: Path) -> None:
    for path in base.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody else's, or gone meanwhile
            found = path.lstat()
            if found.st_uid != os.geteuid() or time.time() - found.st_ctime < _YOUNG_S:
                continue
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(handle)
