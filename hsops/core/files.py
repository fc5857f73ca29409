"""Local files and folders: read without waiting for what is none, locked, made durable."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hsops.core.errors import BadDataError, LockedError, UsageError

_NO_LOCKS = (
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
    errno.ENOLCK,
)  # Lustre without -o flock: go on, as every tool does there
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


def open_own(path: Path, *, fix: str = "") -> BinaryIO:
    """A file that this program keeps, for reading: a regular one, not a link, and ours to read.

    Raises:
        BadDataError: it is something else, or not to be read.
        FileNotFoundError: it is not there.
    """
    try:
        file = open_file(path, fix=fix)
    except PermissionError as error:
        raise BadDataError(f"{path} cannot be read: {error.strerror}", fix=fix) from None
    except FileNotFoundError:
        if path.is_symlink():
            raise BadDataError(f"{path} is a link, not a file", fix=fix) from None
        raise
    if path.is_symlink():
        file.close()
        raise BadDataError(f"{path} is a link, not a file", fix=fix)
    return file


def open_to_write(path: str | Path, flags: int = 0) -> int:
    """A descriptor of a regular file, made when missing: nothing is written through a link, to a pipe or a device.

    Args:
        path: of the file.
        flags: more of ``open``'s, ``O_APPEND`` for example.

    Raises:
        OSError: it cannot be opened, or something else has the name (``EEXIST``).
    """
    no_wait = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | no_wait | flags, 0o644)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileExistsError(errno.EEXIST, "it is no file", str(path))
    return handle


def output_file(path: Path, option: str) -> Path:
    """The file that an option is to write, links followed; tried before there is anything to lose.

    Args:
        path: as the user named it.
        option: for errors.

    Raises:
        UsageError: it is a pipe, a folder, a device or a socket, or it cannot be written.
    """
    whole, fix = Path(os.path.realpath(path)), "name a file, in a folder that is there"  # a loop of links: as it is
    try:
        if there := path.exists():
            mode = path.stat().st_mode  # of the path: that of a pipe behind /dev/stdout has no other name
            if not stat.S_ISREG(mode):
                raise UsageError(f"{option} {path} is {_kind(mode)}, not a file", fix=fix)
        os.close(
            os.open(whole, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if there else os.O_CREAT | os.O_EXCL), 0o600)
        )
        if not there:
            whole.unlink()
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}", fix=fix) from None
    return whole


@contextmanager
def locked_folder(path: Path, busy: str) -> Iterator[None]:
    """A folder, made when missing, for this process alone.

    Args:
        path: the folder.
        busy: what to say when another process has it; the path is added.

    Raises:
        UsageError: it cannot be a folder.
        LockedError: another process has it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path} cannot be used as a folder: {error.strerror}", fix="--to DIR") from None
    try:
        _lock(handle, f"{busy} {path}")
        yield
    finally:
        os.close(handle)


def make_durable(handle: int) -> None:
    """What was written to an open file is on the medium on return. Raises OSError.

    macOS's fsync leaves it in the drive's cache, and has another call for the rest: fsync(2) there.
    """
    if whole := getattr(fcntl, "F_FULLFSYNC", None):
        try:
            fcntl.fcntl(handle, whole)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):  # a file system that has no such call
                raise
        else:
            return
    os.fsync(handle)


def sync_file(path: Path) -> None:
    """Make a file's content durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        make_durable(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        make_durable(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # SMB and some FUSE file systems sync no folders
            raise
    finally:
        os.close(handle)


def _lock(handle: int, busy: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of it whatever happens to us
    except BlockingIOError:
        raise LockedError(busy, fix="wait for it, or choose another --to DIR") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _demand_file(path: Path, mode: int, fix: str) -> None:
    if not stat.S_ISREG(mode):
        raise BadDataError(f"{path} is {_kind(mode)}, not a file", fix=fix)


def _kind(mode: int) -> str:
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
