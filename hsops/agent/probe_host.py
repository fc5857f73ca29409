"""The machine around a run: memory, the OOM killer, folders, GPUs. Each look has its own deadline."""

import contextlib
import os
import re
import time
from typing import Any

from hsops.agent.probe_tools import CouldNot

_KILLED = re.compile(r"Killed process (\d+) \(([^)]*)\)")
_OCTAL = re.compile(r"\\([0-7]{3})")
_XID = re.compile(r"NVRM: Xid.*")


def memory() -> "dict[str, int]":
    """Total and available bytes of RAM, and how often the kernel's OOM killer struck since boot."""
    found = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(value.split()[0]) * 1024
    with contextlib.suppress(OSError), open("/proc/vmstat", encoding="ascii") as file:
        found["oom_kills"] = sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    return found


def kernel_log(limit: int = 20, since: float = 0.0) -> "dict[str, list[str]]":
    """What the kernel's log says of OOM kills since a time (seconds since the epoch), and of GPU faults (Xid).

    A GPU's fault does not go away with the server that met it, so those are told from the boot on.

    Raises:
        CouldNot: ``not-permitted`` or ``not-found``.
    """
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except PermissionError as error:
        raise CouldNot("not-permitted", "the kernel log is closed to this user (kernel.dmesg_restrict)") from error
    except OSError as error:
        raise CouldNot("not-found", f"no kernel log here: {error.strerror}") from error
    with os.fdopen(fd, "rb", buffering=0) as file:
        records = list(iter(lambda: _record(file.fileno()), None))
    began = since - time.time() + time.monotonic()
    killed = [line for at, line in records if at >= began and _KILLED.search(line)]
    return {"oom": killed[-limit:], "xid": [line for _, line in records if _XID.search(line)][-limit:]}


def _record(fd: int) -> "tuple[float, str] | None":
    """The next record of /dev/kmsg with its time in seconds since the boot, or None at the end."""
    try:
        head, _, text = os.read(fd, 8192).decode("utf-8", "replace").partition(";")
        return int(head.split(",")[2]) / 1e6, text.strip()
    except BrokenPipeError:  # the record was overwritten while we read: the next call gives a later one
        return 0.0, ""
    except OSError:  # BlockingIOError: no more
        return None


def folder(path: str) -> "dict[str, Any]":
    """Free and total bytes below a folder, and whether this user can write there."""
    real = os.path.abspath(os.path.expanduser(path))
    nearest = real
    while not os.path.exists(nearest):
        nearest = os.path.dirname(nearest)
    stat = os.statvfs(nearest)
    return {
        "path": path,
        "exists": nearest == real,
        "free": stat.f_bavail * stat.f_frsize,
        "total": stat.f_blocks * stat.f_frsize,
        "writable": os.path.isdir(nearest) and os.access(nearest, os.W_OK | os.X_OK) and not stat.f_flag & os.ST_RDONLY,
    }


def mount(path: str) -> "dict[str, str]":
    """What ``path`` lies on, or will: ``type``, ``source`` and ``options`` of the file system."""
    real = os.path.realpath(os.path.expanduser(path)) + "/"
    found, at = {"path": path, "type": "", "source": "", "options": ""}, ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            where, _, what = line.rstrip("\n").partition(" - ")
            point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), where.split(" ")[4]).rstrip("/") + "/"
            if real.startswith(point) and len(point) >= len(at):  # the last of equals lies on top
                kind, source, options = what.split(" ", 2)
                at, found = point, {"path": path, "type": kind, "source": source, "options": options}
    return found
