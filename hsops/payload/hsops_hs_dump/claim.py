"""One server writes into a dump folder: two would write the same files, and sweep away each other's unfinished ones."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable

from .files import FILE_MODE
from .hello import say
from .settings import Settings

_HELD = (errno.EACCES, errno.EAGAIN)
LOOK_S = 1.0  # how often the file is looked at; at each pass it would come back while somebody removes the folder
_TRIES = 3  # to lock a file that somebody removes meanwhile


class TakenError(Exception):
    """Another process writes into the folder; the text says which."""


class Claim:
    """``<dump dir>/hello/rank<N>.lock``, locked by the rank N that writes there, as long as its process lives.

    Every rank has its own, because every rank writes check requests. A POSIX lock ends with its process, however that
    ends, and what the process has forked does not keep it. It ends too when the process closes any handle of the file,
    so nothing else may open it.

    Args:
        settings: whose dump folder, and the run that a second server is told of.
        rank: of this process.
        now: seconds of a clock that never goes back.
    """

    def __init__(self, settings: Settings, rank: int, *, now: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._now = settings, now
        self._problem, self._looked = "", now()
        self._path = os.path.join(settings.dump_dir, "hello", f"rank{rank}.lock")
        self._handle = -1

    def take(self) -> None:
        """Lock the file; it says who did.

        Raises:
            TakenError: another process has locked it.
            OSError: the folder cannot be written.
        """
        for _ in range(_TRIES):
            handle = self._open()
            self.release()  # before the lock is there: were it of the same file, closing it would take the lock away
            try:
                self._lock(handle)
            except BaseException:
                os.close(handle)
                raise
            self._handle = handle
            if self._in_place():
                return

    def problem(self) -> str:
        """Why the folder is not this process's any more; "" while it is. Cheap; takes it anew when it was emptied.

        People remove a dump folder to make room while the server runs, and the lock's file with it.
        """
        if self._now() - self._looked >= LOOK_S:
            self._problem, self._looked = self._look(), self._now()
        return self._problem

    def release(self) -> None:
        """Somebody else may have the folder."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def _look(self) -> str:
        if self._in_place():
            return ""
        try:
            self.take()
        except TakenError as error:
            return f"the dump folder was removed, and now {error}"
        except OSError:  # whatever it is, it fails the files themselves, with a better reason
            return ""
        return ""

    def _open(self) -> int:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)

    def _lock(self, handle: int) -> None:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                who = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
                raise TakenError(f"{who} writes into {self._settings.dump_dir}: each server needs its own") from None
            say(f"no lock on {self._path}: another server that writes here would not be noticed ({error})")
        with contextlib.suppress(OSError):  # a full disk: then it is not said who, and locked all the same
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"run {self._settings.run} (pid {os.getpid()})\n".encode(), 0)

    def _in_place(self) -> bool:
        if self._handle < 0:
            return False
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._handle))
        except OSError:
            return False
