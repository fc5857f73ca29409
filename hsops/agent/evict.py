"""``dumps-evict``: files whose copy is safe elsewhere are removed, if they are still what was copied."""

import contextlib
import os
import stat
from typing import Any

from hsops.agent import send

ASIDE = ".hsops-evicting."  # before a file's name while it is decided


def evict(params: "dict[str, Any]") -> "dict[str, Any]":
    """Remove files.

    ``params``: ``folder``; ``files`` [[name, size, inode, mtime_ns, checksum], ...]: a file is removed if it is the one
    with that inode, size and time; with inode 0 its content is read, and must have that checksum.
    Result: ``removed`` [name, ...]; ``kept`` {name: "missing" | "changed" | what the system said}.
    """
    folder, removed, kept = send.folder_of(params), [], {}
    paths = {str(name): send.path_of(folder, str(name)) for name, *_ in params["files"]}
    for where in {os.path.dirname(path) for path in paths.values()}:
        _put_back(where)
    for name, *wanted in params["files"]:
        if why := _tried(paths[name], wanted):
            kept[name] = why
        else:
            removed.append(name)
    return {"removed": removed, "kept": kept}


def _tried(path: str, wanted: "list[Any]") -> str:
    try:
        return _remove(path, *wanted)
    except OSError as error:
        return "missing" if isinstance(error, FileNotFoundError) else error.strerror or str(error)


def _put_back(folder: str) -> None:
    """What a kill in the middle left has its name again, unless another file has taken it."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(ASIDE):
                _give_name(os.path.join(folder, name), os.path.join(folder, name[len(ASIDE) :]))


def _give_name(aside: str, path: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.link(aside, path)
    os.unlink(aside)


def _remove(path: str, size: int, inode: int, mtime_ns: int, checksum: str) -> str:
    """Why it was not removed. Looked at again under another name: whoever replaces it meanwhile loses nothing."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            return "changed"
        if inode and (found.st_ino, found.st_mtime_ns) != (inode, mtime_ns):
            return "changed"
        if not inode:
            total = send.Sum(checksum.partition(":")[0])
            total.read(handle, 0, size)
            if str(total) != checksum:
                return "changed"
        aside = os.path.join(os.path.dirname(path), ASIDE + os.path.basename(path))
        os.rename(path, aside)
        if send.identity(os.stat(aside)) != send.identity(found):
            _give_name(aside, path)
            return "changed"
        os.unlink(aside)
        return ""
    finally:
        os.close(handle)
