"""``dumps-evict``: files whose copy is safe elsewhere are removed, if they are still what was copied."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Any

from hsops.agent import aside, send, tree

ASIDE = aside.ASIDE
IN_USE = "the folder is in use"
_NO_FOLDER = (errno.ELOOP, errno.ENOTDIR)


def evict(params: "dict[str, Any]") -> "dict[str, Any]":
    """Remove files.

    ``params``: ``folder``; ``files`` [[name, size, inode, mtime_ns, checksum], ...]: a file is removed if it is the one
    with that inode, size and time; with inode 0 its content is read, and must have that checksum.
    Result: ``removed`` [name, ...]; ``kept`` {name: "missing" | "changed" | "open" | ``IN_USE`` | what the
    system said}.
    """
    folder = send.folder_of(params)
    kept, found = {}, {}  # type: dict[str, str], dict[str, os.stat_result]
    for name, *_ in params["files"]:
        send.path_of(folder, str(name))
    with contextlib.ExitStack() as stack:
        folders = _Folders(folder, stack)
        for name, *wanted in params["files"]:
            with _fault_of(folders, name, kept):
                found[name] = _found(folders.place(name), *wanted)
        for name in list(found):
            with _fault_of(folders, name, kept):
                handle, last = folders.place(name)
                os.rename(last, ASIDE + last, src_dir_fd=handle, dst_dir_fd=handle)
        taken = {name: one for name, one in found.items() if name not in kept}
        busy = _busy(taken)
        for name, one in taken.items():
            with _fault_of(folders, name, kept):
                _remove(folders.place(name), one, busy=name in busy)
    return {"removed": [name for name in taken if name not in kept], "kept": kept}


class _StaysError(Exception):
    """The file is not removed: why."""


@contextlib.contextmanager
def _fault_of(folders: "_Folders", name: str, kept: "dict[str, str]") -> "Iterator[None]":
    try:
        yield
    except _StaysError as error:
        kept[name] = str(error)
    except FileNotFoundError:
        kept[name] = folders.why_missing(name)
    except OSError as error:  # what was a file or a folder when it was listed is a link by now
        kept[name] = "changed" if error.errno in _NO_FOLDER else error.strerror or str(error)


class _Folders:
    """Folders below one, opened step by step, so that none is a link; what is done in them is done by descriptor."""

    def __init__(self, root: str, stack: contextlib.ExitStack) -> None:
        self._root, self._stack, self._open = root, stack, {}  # type: str, contextlib.ExitStack, dict[str, int]
        self._in_use = set()  # type: set[str]

    def place(self, name: str) -> "tuple[int, str]":
        """The open folder of a file, and its name there."""
        below, _, last = name.rpartition("/")
        if below in self._in_use:
            raise _StaysError(IN_USE)
        if below not in self._open:
            handle = self._enter(below)
            self._stack.callback(os.close, handle)
            aside.left_in(handle)
            if not aside.hold(handle):
                self._in_use.add(below)  # waited for once
                raise _StaysError(IN_USE)
            self._open[below] = handle
        return self._open[below], last

    def why_missing(self, name: str) -> str:
        """Another evict may have it aside, and decide to keep it: looked for in the order in which it goes back."""
        with contextlib.suppress(OSError, _StaysError):  # nor is there its folder
            handle, last = self.place(name)
            for one in (ASIDE + last, last):
                with contextlib.suppress(FileNotFoundError):
                    os.lstat(one, dir_fd=handle)
                    return "open"
        return "missing"

    def _enter(self, below: str) -> int:
        handle = os.open(self._root, aside.FOLDER)
        for part in filter(None, below.split("/")):
            try:
                inner = os.open(part, aside.FOLDER | os.O_NOFOLLOW, dir_fd=handle)
            finally:
                os.close(handle)
            handle = inner
        return handle


def _found(place: "tuple[int, str]", size: int, inode: int, mtime_ns: int, checksum: str) -> os.stat_result:
    """The file, which is the one that was copied."""
    folder, name = place
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
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


def _remove(place: "tuple[int, str]", found: os.stat_result, *, busy: bool) -> None:
    """Looked at again under its other name, by which nobody opens it: whoever replaces it meanwhile loses nothing."""
    folder, name = place
    why = "open" if busy else ""
    try:
        if send.identity(os.lstat(ASIDE + name, dir_fd=folder)) != send.identity(found):
            why = "changed"
    except FileNotFoundError:  # somebody gave it its name back
        raise _StaysError("changed") from None
    if why:
        aside.give_name(folder, name)
        raise _StaysError(why)
    os.unlink(ASIDE + name, dir_fd=folder)


def _busy(taken: "dict[str, os.stat_result]") -> "set[str]":
    """Which of the files that were put aside a process has open for writing, or mapped so: it would write into nothing.

    As far as this user may know.
    """
    if not taken:
        return set()
    names = {ASIDE + name.rpartition("/")[2] for name in taken}
    inodes = {inode for _, inode in tree.written(names)} | set(_mapped(names))
    return {name for name, found in taken.items() if found.st_ino in inodes}


def _mapped(names: "set[str]") -> "Iterator[int]":
    names = {name.replace("\n", "\\012") for name in names}  # as the kernel writes it
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", errors="surrogateescape") as maps:
            for line in maps:
                fields = line.rstrip("\n").split(" ", 5)
                if "w" in fields[1] and "s" in fields[1] and fields[-1].rpartition("/")[2] in names:
                    yield int(fields[4])
