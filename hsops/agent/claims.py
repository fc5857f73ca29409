"""Whose a dump folder is: its server's ranks hold locks there (``hsops_hs_dump/claim.py``)."""

import fcntl
import glob
import os
import struct

_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


def holder(folder: str) -> str:
    """Who writes into the dump folder, in words: ``run 1130-101500-3f2a (pid 712)``; "" when nobody does.

    Asks without taking the lock, so that a rank that comes at this moment is not refused for it.
    """
    locks = sorted(glob.glob(os.path.join(glob.escape(folder), "hello", "rank*.lock")))
    return next(filter(None, map(_holder, locks)), "")


def _holder(lock: str) -> str:
    try:
        with open(lock, "rb") as file:
            wish = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, *_, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, wish))
            if kind == fcntl.F_UNLCK:
                return ""
            return file.read(200).decode(errors="replace").strip() or f"pid {pid}"
    except OSError:  # removed meanwhile, or a file system without locks: the ranks look again
        return ""
