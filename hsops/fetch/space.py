"""Room in the local file system."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hsops.core.errors import SpaceError
from hsops.fetch.plan import Transfer


def check_space(folder: Path, transfers: Sequence[Transfer]) -> None:
    """Refuse before anything is sent.

    Raises:
        SpaceError: the bytes or the files do not fit.
    """
    needed, found = sum(t.left for t in transfers), os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    fix = "free some room, or choose another --to DIR; what is here already will not be sent again"
    if needed > free:
        raise SpaceError(f"{needed:,} bytes are to come, {folder} has {free:,} free", fix=fix)
    if found.f_files and len(transfers) > found.f_favail:  # a file system that counts no inodes says 0
        raise SpaceError(f"{len(transfers):,} files are to come, {folder} has inodes for {found.f_favail:,}", fix=fix)


def room(path: Path) -> int | None:
    """Bytes free where a folder is or would be."""
    for folder in (path, *path.absolute().parents):
        with suppress(OSError):
            found = os.statvfs(folder)
            return found.f_bavail * found.f_frsize
    return None
