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
from itertools import accumulate

from hsops.agent.patch_copy import copy_tree
from hsops.agent.patch_site import Site, remove_file, sha256, sync_folder, write_file
from hsops.agent.protocol import Refusal

_END_S = 5.0  # for a killed process to be gone; one that waits for a dead disk stays longer
_TICK = 0.02  # s; change times come from a clock of a few milliseconds


class Guard:
    """The watch over a root, remembered in ``scratch`` so that the next verb can do what a crash prevented."""

    def __init__(self, scratch: str) -> None:
        self.kept, self.notes = os.path.join(scratch, "kept"), os.path.join(scratch, "guard.json")
        head, patch, _ = scratch.rsplit("/", 2)
        self._beside: list[str] = []  # what lies in its own folder under another name, for want of room elsewhere
        now = time.strftime("%m%d-%H%M%S")
        self._aside, self._name = os.path.join(os.path.dirname(head), "aside", patch, now), f".hsops-aside-{now}"

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
        restored, lost, failed = [], [], list[Exception]()
        for path in sorted(
            differ, key=lambda one: one not in before
        ):  # what was there comes first, while there is room
            ours = path.split("/")[0] in told["scopes"]
            try:
                if path in before and not ours:
                    lost.append(path)
                elif self._bring_back(site, path, before.get(path)):
                    restored.append(path)
            except (OSError, Refusal) as error:  # of one file: the others come back all the same
                lost.append(path)
                failed += [error] if path in before else []
        for folder in {os.path.dirname(os.path.join(site.root, path)) for path in differ if path not in before}:
            with contextlib.suppress(OSError):  # a folder that it made; one with something in it was there
                os.rmdir(folder)
        if failed:  # the copies stay, and the next verb tries it again
            raise failed[0]
        return sorted(restored), sorted([*lost, *self._beside])

    def _bring_back(self, site: Site, path: str, before: list[int] | None) -> bool:
        """One file of the scopes; False when only its times differ."""
        full, kept = os.path.join(site.root, path), os.path.join(self.kept, path)
        if before is None:
            with contextlib.suppress(NotADirectoryError, IsADirectoryError):  # what was there before took its place
                self._put_aside(site, path)
                remove_file(full)
            return True
        self._clear(site, path)
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
        found = None
        with contextlib.suppress(PermissionError):  # made unreadable: another file than it was
            found = site.state(path)
        state = {"sha256": sha256(data), "mode": mode & 0o7777, "mtime_ns": mtime, "uid": uid, "gid": gid}
        if found and {**found[0], "mtime_ns": mtime} == state:
            os.utime(full, ns=(mtime, mtime))
            return False
        self._make_way(site, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        site.stage(path, state, _Bytes(data))
        sync_folder(site.place(path, state))
        return True

    def _clear(self, site: Site, path: str) -> None:
        """No folder stands in a file's place, and nothing else in that of a folder above it."""
        parts = path.split("/")
        for above in accumulate(parts[:-1], "{}/{}".format):
            full = os.path.join(site.root, above)
            if os.path.islink(full) or (os.path.lexists(full) and not os.path.isdir(full)):
                self._take_away(site, above)
        full = os.path.join(site.root, path)
        if os.path.isdir(full) and not os.path.islink(full):
            os.rename(full, full + self._name)
            self._beside.append(path + self._name)

    def _take_away(self, site: Site, path: str) -> None:
        self._make_way(site, path)
        remove_file(os.path.join(site.root, path))

    def _make_way(self, site: Site, path: str) -> None:
        """Put aside what must not stay at ``path``; for want of room it gets another name in its folder."""
        full = os.path.join(site.root, path)
        try:
            self._put_aside(site, path)
        except OSError:
            os.link(full, full + self._name, follow_symlinks=False)
            self._beside.append(path + self._name)

    def _put_aside(self, site: Site, path: str) -> None:
        """Keep what lies at ``path``, if it is a file or a link.

        Raises:
            OSError: it cannot be kept.
        """
        full, target = os.path.join(site.root, path), os.path.join(self._aside, path)
        if os.path.isfile(full) or os.path.islink(full):
            try:
                os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
                shutil.copy2(full, target, follow_symlinks=False)
            except OSError:
                with contextlib.suppress(OSError):  # half of it
                    os.unlink(target)
                if os.path.lexists(full):  # else it vanished meanwhile
                    raise


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
                try:
                    told = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # it vanished meanwhile; the others of its folder did not
                    continue
                times = [told.st_mtime_ns, told.st_ctime_ns, told.st_size, told.st_ino, told.st_mode]
                found[path] = [*times, told.st_uid, told.st_gid]
    return found
