"""A file under another name, with as few bytes written as its file system allows."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

_FICLONE = 0x40049409  # <linux/fs.h>: share all blocks until one of the two files is written to
_NOT_HERE = (
    errno.EXDEV,
    errno.EPERM,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
    errno.ENOTTY,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EMLINK,
)
REFLINK, LINK, COPY = "reflink", "hard link", "copy"


def place(source: Path, to: Path, *, copy: bool) -> str:
    """Make ``to`` the content of ``source``: by reflink, else by hard link, else by copy; says by which.

    Args:
        source: a regular file.
        to: must not exist.
        copy: no link: the two shall share nothing. A reflink shares nothing that a program could notice.

    Raises:
        OSError: it can be neither linked nor copied.
    """
    if _reflink(source, to):
        return REFLINK
    if not copy and _link(source, to):
        return LINK
    shutil.copyfile(source, to)  # by the kernel: sendfile or copy_file_range
    return COPY


def _reflink(source: Path, to: Path) -> bool:
    try:
        with source.open("rb") as read, to.open("xb") as write:
            fcntl.ioctl(write.fileno(), _FICLONE, read.fileno())
    except OSError as error:
        to.unlink(missing_ok=True)
        if error.errno not in _NOT_HERE:
            raise
        return False
    return True


def _link(source: Path, to: Path) -> bool:
    try:
        os.link(source, to, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        return False
    return True
