"""Folders and files for the time of one command. A client killed by SIGKILL leaves a folder until the next one."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_PREFIX = "hsops-scratch-"
_YOUNG_S = 60.0  # its owner may not have locked it yet


class PassedFile:
    """A file of our own to hand to a library or a child by its ``path``; ``file`` reads and writes it.

    On Linux it lies in memory and is gone with this process. Elsewhere it is one of mode 0600 among the user's
    temporary files, which a SIGKILL leaves there.
    """

    def __init__(self, name: str) -> None:
        if sys.platform == "linux":
            self.file: IO[bytes] = os.fdopen(os.memfd_create(name), "w+b")
            self.path = f"/proc/{os.getpid()}/fd/{self.file.fileno()}"
        else:
            self.file = tempfile.NamedTemporaryFile(prefix=f"{name}-")  # noqa: SIM115 - closed by close()
            self.path = self.file.name

    def __enter__(self) -> PassedFile:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()

    def close(self) -> None:
        """It is no more."""
        self.file.close()


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
