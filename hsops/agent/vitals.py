"""Signs of work of a run that need no log line: what its processes read, touch, compile and do."""

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from hsops.agent import gpus, jit_cache, probe_stacks, procs
from hsops.agent.probe_census import COMPILERS
from hsops.agent.probe_tools import CouldNot

_CHATTER = 512  # bytes that a call of a wait loop reads or writes at most: eight of an eventfd, a line of a log
_TICK = os.sysconf("SC_CLK_TCK")
_SOURCES = (".cu", ".cc", ".cpp", ".c", ".ptx", ".cxx", ".gpu", ".ii", ".cubin", ".py")
_STACKS_S = 3.0  # for one look by py-spy; it takes 20 ms
_STACKS_EVERY_S = 8.0


class Vitals:
    """What is known of one run, look by look. Whatever may block is asked in the background and told when it came."""

    def __init__(self, env: "Mapping[str, str]") -> None:
        self._calls: dict[tuple[int, int], dict[str, int]] = {}
        self._bulk: dict[int, int] = {}
        self._all_bulk = self._written = 0
        env = {**os.environ, **env}
        self._gpus = gpus.GpuMemory(env.get("CUDA_VISIBLE_DEVICES", ""))
        self._caches = jit_cache.Caches(jit_cache.roots(env))
        self._stacks = Stacks()

    def look(self, pid: int, pids: "dict[str, int]", *, mute_s: float) -> "dict[str, Any]":
        """The tree of ``pid`` (0: none) and each rank of ``pids``. ``mute_s``: seconds without a log line."""
        everyone = [procs.look(pid), *procs.tree(pid)] if pid else []
        tree = [p for p in everyone if p and not p.zombie]
        io = {p.pid: self._io(p) for p in tree}
        names = {number: role for role, number in pids.items()}
        ranks = {
            names[p.pid]: {
                "read": io[p.pid],
                "cached": self._bulk.get(p.pid, 0),
                "majflt": p.majflt,
                "minflt": p.minflt,
                "rss": p.rss,
                "cpu": p.cpu,
                "state": p.state,
            }
            for p in tree
            if p.pid in names
        }
        return {
            "now": time.time(),
            "read": sum(io.values()),
            "cached": self._all_bulk,
            "majflt": sum(p.majflt for p in tree),
            "rss": sum(p.rss for p in tree),
            "gpu_mib": self._gpus.look(io),
            "compilers": _compilers(tree),
            "jit": self._caches.look(self._written),
            "functions": self._stacks.look(pid, pids, mute_s),
            "ranks": ranks,
        }

    def close(self) -> None:
        """End questions under way."""
        self._gpus.close()

    def _io(self, proc: procs.Proc) -> int:
        """Bytes fetched from storage; what came in bulk from the page cache, or went to files, is added to the sums.

        ``rchar`` alone lies: it grows with every byte read from an eventfd, so a spinning process would look busy
        loading. What its calls moved beyond a wait loop's chatter came from files, or went there.
        """
        found = procs.io(proc.pid)
        old = self._calls.get((proc.pid, proc.start))
        self._calls[proc.pid, proc.start] = found
        if old and found:
            bulk = _beyond_chatter(old, found, "rchar", "syscr")
            self._bulk[proc.pid] = self._bulk.get(proc.pid, 0) + bulk
            self._all_bulk += bulk
            self._written += _beyond_chatter(old, found, "wchar", "syscw")
        return found.get("read_bytes", 0)


def _beyond_chatter(old: "dict[str, int]", new: "dict[str, int]", size: str, calls: str) -> int:
    return max(0, new[size] - old[size] - _CHATTER * (new[calls] - old[calls]))


def _compilers(tree: "list[procs.Proc]") -> "list[dict[str, Any]]":
    """Compilers at work, oldest first: name, what they compile, age in seconds, CPU ticks. A stopped one does not work.

    Not those of inductor's worker pool, which stay when they have nothing to do: they start real ones.
    """
    with open("/proc/uptime", encoding="ascii") as file:
        up = float(file.read().split()[0])
    found = [
        {"name": p.comm, "what": _source(p.pid), "age_s": round(up - p.start / _TICK, 1), "cpu": p.cpu}
        for p in sorted(tree, key=lambda p: p.start)
        if p.comm in COMPILERS and p.state not in "Tt"
    ]
    return found[:20]


def _source(pid: int) -> str:
    """The file that a compiler's command line names first, without its folder."""
    words = procs.title(pid).split()
    return next((os.path.basename(word)[:80] for word in words[1:] if word.endswith(_SOURCES)), "")


class Stacks:
    """In which function each rank is, asked of py-spy only while the log is mute. Without py-spy it knows nothing."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._next = 0.0
        self._found: dict[str, list[str]] = {}

    def look(self, pid: int, pids: "dict[str, int]", mute_s: float) -> "dict[str, list[str]]":
        """The newest finding, told once: rank -> names of the main thread's functions, from the outermost inwards."""
        found, self._found = self._found, {}
        now = time.monotonic()
        idle = self._thread is None or not self._thread.is_alive()
        pids = {role: number for role, number in pids.items() if "TP" in role}
        if pid and pids and mute_s >= _STACKS_EVERY_S and now >= self._next and idle:
            self._next = now + _STACKS_EVERY_S
            self._thread = threading.Thread(target=self._ask, args=(pid, pids), daemon=True)
            self._thread.start()
        return found

    def _ask(self, pid: int, pids: "dict[str, int]") -> None:
        try:
            tool = probe_stacks.find(procs.argv(pid))
        except CouldNot:
            self._next = float("inf")
            return
        dumps = probe_stacks.dump(tool, list(pids.values()), _STACKS_S)
        self._found = {
            rank: [frame[0] for frame in reversed(dumps[number]["threads"][0]["frames"])]
            for rank, number in pids.items()
            if dumps[number].get("threads")
        }
