"""Watches a root while a script runs that could reach it: what it changed is found by stat and brought back.

Only needed where the script cannot have a view of its own. Every file's change time is compared, which no program can
set; the bytes of the folders that the script is to work in are kept, so those can be brought back, others only be told.
Nobody can tell who wrote a file meanwhile, the script or somebody else: what is taken away is put aside, not lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time

from hsops.agent.patch_copy import copy_tree
from hsops.agent.patch_site import Site, remove_file, sha256, sync_folder, write_file

_END_S = 5.0  # for a killed process to be gone; one that waits for a dead disk stays longer
_TICK = 0.02  # s; change times come from a clock of a few milliseconds


class Guard:
    """The watch over a root, remembered in ``scratch`` so that the next verb can do what a crash prevented."""

    def __init__(self, scratch: str) -> None:
        self.kept, self.notes = os.path.join(scratch, "kept"), os.path.join(scratch, "guard.json")
        head, patch, _ = scratch.rsplit("/", 2)
        self._aside = os.path.join(os.path.dirname(head), "aside", patch, time.strftime("%m%d-%H%M%S"))

    @property
    def aside(self) -> str:
        """Where what ``restore`` took away lies now; empty: nothing does."""
        return self._aside if os.path.isdir(self._aside) else ""

    def watched(self) -> bool:
        """It was begun."""
        return os.path.exists(self.notes)

    def watch(self, root: str, scopes: list[str]) -> None:
        """Begin: keep the bytes of ``scopes``, and how every file below the root is."""
        os.makedirs(self.kept, mode=0o700)
        copy_tree(root, scopes, self.kept)
        told = {"root": root, "scopes": scopes, "files": _stats(root)}
        write_file(self.notes, json.dumps(told).encode())
        time.sleep(_TICK)

    def restore(self) -> tuple[list[str], list[str]]:
        """Bring back what differs; returns what was brought back, and what was changed and cannot be."""
        with open(self.notes, encoding="utf-8") as file:
            told = json.load(file)
        if not os.path.isdir(told["root"]):  # uninstalled since
            return [], []
        site, before, after = Site(told["root"]), told["files"], _stats(told["root"])
        differ = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        restored, lost = [], []
        for path in differ:
            if path.split("/")[0] in told["scopes"]:
                if self._bring_back(site, path, before.get(path)):
                    restored.append(path)
            elif path not in before:
                self._take_away(site, path)
                restored.append(path)
            else:
                lost.append(path)
        for folder in {os.path.dirname(os.path.join(site.root, path)) for path in differ if path not in before}:
            with contextlib.suppress(OSError):  # a folder that it made; one with something in it was there
                os.rmdir(folder)
        return restored, lost

    def _bring_back(self, site: Site, path: str, before: list[int] | None) -> bool:
        """One file of the scopes; False when only its times differ."""
        full, kept = os.path.join(site.root, path), os.path.join(self.kept, path)
        if before is None:
            self._take_away(site, path)
            return True
        if os.path.islink(kept):
            same = os.path.islink(full) and os.readlink(full) == os.readlink(kept)
            if not same:
                self._take_away(site, path)
                os.symlink(os.readlink(kept), full)
            return not same
        with open(kept, "rb") as file:
            data = file.read()
        mtime, _, _, _, mode, uid, gid = before
        if os.path.islink(full):
            self._take_away(site, path)
        found = site.state(path)
        state = {"sha256": sha256(data), "mode": mode & 0o7777, "mtime_ns": mtime, "uid": uid, "gid": gid}
        if found and {**found[0], "mtime_ns": mtime} == state:
            os.utime(full, ns=(mtime, mtime))
            return False
        self._put_aside(site, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        site.stage(path, state, _Bytes(data))
        sync_folder(site.place(path, state))
        return True

    def _take_away(self, site: Site, path: str) -> None:
        self._put_aside(site, path)
        remove_file(os.path.join(site.root, path))

    def _put_aside(self, site: Site, path: str) -> None:
        """Keep what lies at ``path``, if it is a file or a link."""
        full, target = os.path.join(site.root, path), os.path.join(self._aside, path)
        if os.path.isfile(full) or os.path.islink(full):
            os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
            shutil.copy2(full, target, follow_symlinks=False)


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def get(self, _: str) -> bytes:
        return self.data


def kill_marked(name: str, value: str) -> None:
    """End every process that has ``name=value`` in its environment; returns when they are gone, and write no more."""
    wanted = f"{name}={value}".encode()
    until = time.monotonic() + _END_S
    while (found := _with_environment(wanted)) and time.monotonic() < until:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_TICK)


def _with_environment(wanted: bytes) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if wanted in file.read().split(b"\0") and int(pid) != os.getpid():
                found.append(int(pid))
    return found


def _stats(root: str) -> dict[str, list[int]]:
    """How every file below ``root`` is, byte code aside; a changed byte changes it, whoever wrote it."""
    found, left = {}, [""]
    while left:
        inner = left.pop()
        with contextlib.suppress(FileNotFoundError, PermissionError), os.scandir(os.path.join(root, inner)) as entries:
            for entry in entries:
                path = f"{inner}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        left.append(f"{path}/")
                    continue
                told = entry.stat(follow_symlinks=False)
                times = [told.st_mtime_ns, told.st_ctime_ns, told.st_size, told.st_ino, told.st_mode]
                found[path] = [*times, told.st_uid, told.st_gid]
    return found
