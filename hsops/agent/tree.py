"""``tree-list``: the files below any folder, and which of them somebody still writes.

Links, devices, pipes and sockets are counted, not listed, and never followed.
"""

import contextlib
import fnmatch
import os
import stat
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hsops.agent import aside, protocol, send

BATCH = 500  # files in one event


def list_tree(params: "dict[str, Any]") -> "dict[str, Any]":
    """What is there now.

    ``params``: ``folder``; ``include``, ``exclude``: patterns of names, of whole paths where they have a slash; an
    excluded folder is not entered. Events: ``files`` {"files": [[path, bytes, mtime_ns, inode], ...]}. Result:
    ``open`` [path, ...] of those that a process has open for writing, as far as this user may know; ``skipped``
    {"link" | "folder" | "special": number}: unreadable folders are counted, too.
    """
    folder = send.folder_of(params)
    if not os.path.isdir(folder):
        raise protocol.Refusal("no-folder", f"there is no folder {folder}")
    walk = _Walk(folder, params.get("include") or [], params.get("exclude") or [])
    batch = []
    for one in walk.files():
        batch.append(one)
        if len(batch) == BATCH:
            protocol.emit("files", files=batch)
            batch = []
    protocol.emit("files", files=batch)
    names = {path.rpartition("/")[2] for paths in walk.paths.values() for path in paths}
    still = [path for inode in written(names) for path in walk.paths.get(inode, ())]
    return {"open": sorted(still), "skipped": dict(walk.skipped)}


class _Walk:
    def __init__(self, folder: str, include: "list[str]", exclude: "list[str]") -> None:
        self.folder, self.include, self.exclude = folder, include, exclude
        self.skipped = Counter()  # type: Counter[str]
        self.paths = {}  # type: dict[tuple[int, int], list[str]]

    def files(self) -> "Iterator[list[Any]]":
        """Depth first, each with its path below the folder."""
        todo = [""]
        while todo:
            below = todo.pop()
            try:
                entries = _entries(os.path.join(self.folder, below))
            except OSError:
                self.skipped["folder"] += 1
                continue
            for entry in entries:
                path = below + entry.name
                if entry.name.startswith(aside.ASIDE) or _matches(path, self.exclude):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    todo.append(path + "/")
                elif not self.include or _matches(path, self.include):
                    yield from self._file(path, entry)

    def _file(self, path: str, entry: "os.DirEntry[str]") -> "Iterator[list[Any]]":
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:  # gone since
            return
        if stat.S_ISREG(found.st_mode):
            self.paths.setdefault((found.st_dev, found.st_ino), []).append(path)
            yield [path, found.st_size, found.st_mtime_ns, found.st_ino]
        else:
            self.skipped["link" if stat.S_ISLNK(found.st_mode) else "special"] += 1


def _entries(folder: str) -> "list[os.DirEntry[str]]":
    """By name, with those that an evict which was killed had put aside."""
    entries = list(os.scandir(folder))
    if any(entry.name.startswith(aside.ASIDE) for entry in entries) and aside.left(folder):
        entries = list(os.scandir(folder))
    return sorted(entries, key=lambda entry: entry.name)


def _matches(path: str, patterns: "list[str]") -> bool:
    name = path.rpartition("/")[2]
    return any(fnmatch.fnmatchcase(path if "/" in p else name, p.strip("/")) for p in patterns)


def written(names: "set[str]") -> "set[tuple[int, int]]":
    """Device and inode of files of these names that a process has open for writing: one pass over /proc."""
    found = set()  # type: set[tuple[int, int]]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            handles = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # another user's, or gone
            continue
        for handle in handles:
            with contextlib.suppress(OSError, ValueError, StopIteration):  # closed meanwhile
                target = os.readlink(f"/proc/{pid}/fd/{handle}")
                if target.rpartition("/")[2] in names and _for_writing(pid, handle):
                    seen = os.stat(f"/proc/{pid}/fd/{handle}")
                    found.add((seen.st_dev, seen.st_ino))
    return found


def _for_writing(pid: str, handle: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{handle}") as file:
        flags = next(line.split()[1] for line in file if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY
