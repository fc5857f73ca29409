"""A view of the file system for one process: copies stand where the real folders are, the rest is read-only.

With it a script that has the path of SGLang written in it changes the copy. Needs a mount namespace: as root with
CAP_SYS_ADMIN, else a user namespace around it, which containers and some distributions forbid.
"""

from __future__ import annotations

import ctypes
import os

_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
# what a bind mount must keep of the mount below it, or the kernel refuses to make it read-only in a user namespace
_KEPT = {os.ST_NOSUID: 0x2, os.ST_NODEV: 0x4, os.ST_NOEXEC: 0x8, os.ST_NOATIME: 0x400, os.ST_NODIRATIME: 0x800}
_RELATIME = 0x200000


def enter(root: str, places: list[tuple[str, str]]) -> None:
    """Give the calling process its view. For a child between fork and exec.

    Args:
        root: the folder that becomes read-only.
        places: copies of folders, each with the folder below ``root`` in whose place it is to stand.

    Raises:
        OSError: the kernel does not allow it. The process is of no use afterwards.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _unshare(libc)
    _mount(libc, None, "/", _REC | _PRIVATE)
    _mount(libc, root, root, _BIND | _REC)
    flags = os.statvfs(root).f_flag
    kept = sum(bit for told, bit in _KEPT.items() if flags & told) | (_RELATIME if flags & os.ST_RELATIME else 0)
    _mount(libc, None, root, _BIND | _REMOUNT | _RDONLY | kept)
    for copy, real in places:
        _mount(libc, copy, real, _BIND)


def _unshare(libc: ctypes.CDLL) -> None:
    if os.geteuid() == 0 and libc.unshare(_NEWNS) == 0:
        return
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_NEWUSER | _NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _mount(libc: ctypes.CDLL, source: str | None, target: str, flags: int) -> None:
    encoded = [None if path is None else os.fsencode(path) for path in (source, target)]
    if libc.mount(encoded[0], encoded[1], None, ctypes.c_ulong(flags), None) != 0:
        raise OSError(ctypes.get_errno(), "mount", target)
