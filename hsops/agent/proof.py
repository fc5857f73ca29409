"""Proof that processes are gone: nobody listens on their port, their shared memory and their GPU memory are free."""

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterable
from typing import Any

from hsops.agent import doctor_gpus, procs
from hsops.agent.ending import until
from hsops.agent.probe_tools import CouldNot

GPU_S = 20.0  # for the driver to give memory back; tens of GiB take it a second or two
_TOOL_S = 10.0  # nvidia-smi without persistence mode wakes the GPUs first
_AHEAD_S = 4.0  # in all, before the first signal: the GPUs of a server are awake, and ending it matters more
_SLACK_MIB = 512  # another process' context comes and goes
_PORT_S = 3.0
_SHM = "/dev/shm"  # noqa: S108 - looked at, and segments of the ended are removed
_KINDS = ("psm_", "sem.", "torch_", "nccl-")  # that Python, torch and NCCL make; anything else is somebody's file


class Proof:
    """Made while the processes live, asked when they are gone.

    Args:
        pids: of the processes.
        gpu_s: seconds to wait for GPU memory.
        since: seconds since the epoch; segments that they may have made are removed, which are as young. None: none.
    """

    def __init__(self, pids: "list[int]", gpu_s: float = GPU_S, since: "float | None" = None) -> None:
        self._pids, self._gpu_s, self._before = set[int](), gpu_s, _gpus(_AHEAD_S)
        self._since, self._segments = since, dict[str, tuple[int, int]]()
        self.note(pids)

    def note(self, pids: "list[int]") -> None:
        """More processes, or the same a little later: what they share by now."""
        self._pids.update(pids)
        self._segments.update(_segments(pids))

    def told(self, port: "int | None" = None) -> "dict[str, Any]":
        """``port`` {``number``, ``holder``} or null, ``shm`` (``_shm``), ``gpu`` (``_gpu``), as they are now."""
        return {"port": port and self._port(port), "shm": self._shm(), "gpu": self._gpu()}

    def _port(self, port: int) -> "dict[str, Any]":
        until(lambda: procs.listener(port) is None, _PORT_S)
        return {"number": port, "holder": procs.listener(port)}

    def _shm(self) -> "dict[str, Any]":
        """``segments``: how many they had in /dev/shm; ``removed``: those that nobody has any more; ``left``: the rest.

        A rank that is killed unlinks nothing, and its tracker may have been killed before it. What is not known to be
        a segment that they made is left: it may be a user's file that one of them has read.
        """
        there = {path for path, file in self._segments.items() if _file(path) == file}
        users = set(_segments(list(procs.census()))) if there else set()
        removed = []
        for path in sorted(there - users):
            with contextlib.suppress(OSError):
                if self._made(path):
                    os.unlink(path)
                    removed.append(path)
        return {"segments": len(self._segments), "removed": removed, "left": sorted(there - set(removed))}

    def _made(self, path: str) -> bool:
        found = os.lstat(path)
        mine = os.path.basename(path).startswith(_KINDS) and found.st_uid == os.geteuid()
        return mine and self._since is not None and found.st_ctime >= self._since

    def _gpu(self) -> "dict[str, Any]":
        """What became of their memory.

        ``could_not``: why nothing is known, or null. ``mib``: what they held; ``hidden``: nvidia-smi shows no process
        at all, so that only the sums tell. ``gpus`` [{``gpu``, ``before``, ``after``}] MiB in use. ``held`` [{``gpu``,
        ``mib``, ``by``}]: not given back within ``seconds``, and the processes there, which may be none.
        """
        before, mine = self._before, dict[str, int]()
        if isinstance(before, CouldNot):
            return _unknown(before)
        for row in before["apps"]:
            if int(row["pid"]) in self._pids:
                mine[row.get("uuid", "")] = mine.get(row.get("uuid", ""), 0) + mib_of(row)
        hidden = not before["apps"] and any(mib >= _SLACK_MIB for mib in before["used"].values())
        began, after = time.monotonic(), _gpus() if mine or hidden else before
        while not isinstance(after, CouldNot):
            held = self._held(before, after, mine)
            if not held or time.monotonic() - began > self._gpu_s:
                seconds = round(time.monotonic() - began, 1)
                shown = _sums(before, after, mine or (before["used"] if hidden else {}))
                return {"could_not": None, "mib": sum(mine.values()), "hidden": hidden, "gpus": shown, "held": held,
                        "seconds": seconds}  # fmt: skip
            time.sleep(0.2)
            after = _gpus()
        return _unknown(after)

    def _held(
        self, before: "dict[str, Any]", after: "dict[str, Any]", mine: "dict[str, int]"
    ) -> "list[dict[str, Any]]":
        """GPUs where they are still listed, or where more is in use than the others had."""
        held = []
        for uuid, mib in mine.items():
            there = [row for row in after["apps"] if row.get("uuid", "") == uuid]
            over = after["used"].get(uuid, 0) - max(0, before["used"].get(uuid, 0) - mib)
            listed = any(int(row["pid"]) in self._pids for row in there)
            if listed or over > _SLACK_MIB:
                by = [{"pid": int(row["pid"]), "mib": mib_of(row), "command": row["command"]} for row in there]
                held.append({"gpu": before["index"].get(uuid, "?"), "mib": max(over, 0), "by": by})
        return held


def _unknown(reason: CouldNot) -> "dict[str, Any]":
    return {"could_not": {"why": reason.why, "message": reason.message}}


def _sums(before: "dict[str, Any]", after: "dict[str, Any]", wanted: "Iterable[str]") -> "list[dict[str, Any]]":
    used = [(uuid, before["used"].get(uuid), after["used"].get(uuid)) for uuid in wanted]
    return [{"gpu": before["index"].get(uuid, "?"), "before": was, "after": now} for uuid, was, now in used]


def mib_of(row: "dict[str, Any]") -> int:
    """MiB of a row of nvidia-smi; 0 for what it does not know."""
    digits = re.match(r"\d+", str(row.get("mib", "")))
    return int(digits.group()) if digits else 0


def _gpus(seconds: float = _TOOL_S) -> "dict[str, Any] | CouldNot":
    """``apps``: who holds memory; ``used``: uuid -> MiB in use; ``index``: uuid -> number."""
    over = time.monotonic() + seconds
    try:
        apps, gpus = doctor_gpus.holders(seconds), doctor_gpus.gpus(over - time.monotonic())
    except CouldNot as reason:
        return reason
    return {
        "apps": apps,
        "used": {gpu.get("uuid", ""): mib_of({"mib": gpu.get("memory")}) for gpu in gpus},
        "index": {gpu.get("uuid", ""): gpu.get("index", "?") for gpu in gpus},
    }


def _segments(pids: "list[int]") -> "dict[str, tuple[int, int]]":
    """Files right in /dev/shm that processes have mapped or open -> ``_file``; the dumps lie in folders below it.

    By the inode: a semaphore is mapped under the name that glibc made it by, and linked to its own name later. And by
    the device: a container's /dev/shm has the same numbers.
    """
    held = {file for pid in pids for file in procs.inodes(pid, _SHM + "/")}
    names = [os.path.join(_SHM, name) for name in os.listdir(_SHM)] if held and os.path.isdir(_SHM) else []
    return {path: file for path in names if (file := _file(path)) in held}


def _file(path: str) -> "tuple[int, int]":
    """Device and inode of a regular file; zeros when it is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else (0, 0)
