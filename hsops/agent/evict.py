"""``dumps-evict``: files whose copy is safe elsewhere are removed, if they are still what was copied."""

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import Any

from hsops.agent import send, tree

ASIDE = tree.ASIDE


def evict(params: "dict[str, Any]") -> "dict[str, Any]":
    """Remove files.

    ``params``: ``folder``; ``files`` [[name, size, inode, mtime_ns, checksum], ...]: a file is removed if it is the one
    with that inode, size and time; with inode 0 its content is read, and must have that checksum.
    Result: ``removed`` [name, ...]; ``kept`` {name: "missing" | "changed" | "open" | what the system said}.
    """
    folder = send.folder_of(params)
    kept, found = {}, {}  # type: dict[str, str], dict[str, os.stat_result]
    paths = {str(name): send.path_of(folder, str(name)) for name, *_ in params["files"]}
    for where in {os.path.dirname(path) for path in paths.values()}:
        if _is_below(folder, where):
            _put_back(where)
    for name, *wanted in params["files"]:
        with _fault_of(name, kept):
            if not _is_below(folder, os.path.dirname(paths[name])):
                kept[name] = "changed"
            else:
                found[name] = _found(paths[name], *wanted)
    for name in list(found):
        with _fault_of(name, kept):
            os.rename(paths[name], _aside(paths[name]))
    aside = {name: one for name, one in found.items() if name not in kept}
    busy = _busy(aside)
    for name, one in aside.items():
        with _fault_of(name, kept):
            _remove(paths[name], one, busy=name in busy)
    return {"removed": [name for name in aside if name not in kept], "kept": kept}


class _StaysError(Exception):
    """The file is not removed: why."""


@contextlib.contextmanager
def _fault_of(name: str, kept: "dict[str, str]") -> "Iterator[None]":
    try:
        yield
    except _StaysError as error:
        kept[name] = str(error)
    except OSError as error:
        kept[name] = "missing" if isinstance(error, FileNotFoundError) else error.strerror or str(error)


def _is_below(folder: str, where: str) -> bool:
    """No folder on the way has become a link since the files were listed."""
    real = os.path.realpath(folder)
    return os.path.realpath(where) == os.path.normpath(os.path.join(real, os.path.relpath(where, folder)))


def _put_back(folder: str) -> None:
    """What a kill in the middle left has its name again, unless another file has taken it."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(ASIDE):
                _give_name(os.path.join(folder, name), os.path.join(folder, name[len(ASIDE) :]))


def _give_name(aside: str, path: str) -> None:
    try:
        os.link(aside, path)
    except FileExistsError:
        pass
    except OSError:  # no hard links here, or not of another user's file
        if not os.path.lexists(path):
            os.rename(aside, path)
            return
    os.unlink(aside)


def _aside(path: str) -> str:
    return os.path.join(os.path.dirname(path), ASIDE + os.path.basename(path))


def _found(path: str, size: int, inode: int, mtime_ns: int, checksum: str) -> os.stat_result:
    """The file, which is the one that was copied."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(handle)
        same = stat.S_ISREG(found.st_mode) and found.st_size == size
        if same and inode:
            same = (found.st_ino, found.st_mtime_ns) == (inode, mtime_ns)
        elif same:
            total = send.Sum(checksum.partition(":")[0])
            total.read(handle, 0, size)
            same = str(total) == checksum
        if not same:
            raise _StaysError("changed")
        return found
    finally:
        os.close(handle)


def _remove(path: str, found: os.stat_result, *, busy: bool) -> None:
    """Looked at again under its other name, by which nobody opens it: whoever replaces it meanwhile loses nothing."""
    why = "open" if busy else ""
    if send.identity(os.stat(_aside(path))) != send.identity(found):
        why = "changed"
    if why:
        _give_name(_aside(path), path)
        raise _StaysError(why)
    os.unlink(_aside(path))


def _busy(aside: "dict[str, os.stat_result]") -> "set[str]":
    """Which of the files that were put aside a process has open for writing, or mapped so: it would write into nothing.

    As far as this user may know.
    """
    if not aside:
        return set()
    names = {ASIDE + name.rpartition("/")[2] for name in aside}
    inodes = {inode for _, inode in tree.written(names)} | set(_mapped(names))
    return {name for name, found in aside.items() if found.st_ino in inodes}


def _mapped(names: "set[str]") -> "Iterator[int]":
    names = {name.replace("\n", "\\012") for name in names}  # as the kernel writes it
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", errors="surrogateescape") as maps:
            for line in maps:
                fields = line.rstrip("\n").split(" ", 5)
                if "w" in fields[1] and "s" in fields[1] and fields[-1].rpartition("/")[2] in names:
                    yield int(fields[4])
