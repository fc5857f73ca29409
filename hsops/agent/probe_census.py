"""Who belongs to a run: its process tree, what fell out of it, and what each process is."""

import os
import re
import time
from itertools import pairwise
from typing import Any

from hsops.agent import procs
from hsops.agent.rundir import RunDir

COMPILERS = frozenset(
    {"nvcc", "cicc", "ptxas", "ptxas-blackwell", "fatbinary", "nvlink", "cudafe++", "ninja", "ld", "collect2", "as"}
    | {"cc1", "cc1plus", "cc", "gcc", "c++", "g++", "x86_64-linux-gn", "clang", "clang++", "hipcc", "triton", "nvrtc"}
)
_TICK = os.sysconf("SC_CLK_TCK")
_RANK = re.compile(r"TP(\d+)")
_DEAD = {"sglang::schedul": "scheduler", "sglang::detoken": "detokenizer"}  # all that is left of a title


def find(
    *, pid: "int | None", run: "str | None", port: "int | None", log: "str | None" = None
) -> "list[dict[str, Any]]":
    """The processes of a run: the tree below ``pid``, and everything that carries the run's mark or writes to its log
    (a title overwrites the environment). Without a pid: the tree below a ``launch_server`` started for ``port``.

    One outside the launcher's tree is marked ``orphan``. The run's supervisor is none of them.
    """
    snapshot = procs.Snapshot()
    everyone = snapshot.everyone
    root = pid if pid in everyone else None
    if not pid and port:
        root = next((p for p in everyone if _serves(procs.argv(p), port)), None)
    tree = procs.below([root], everyone) | {root} if root else set()
    marked: set[int] = set()
    if run and log:
        path = os.path.realpath(os.path.expanduser(log))
        marked = snapshot.shows(RunDir(os.path.dirname(path)).mark(), path)
    boot = time.time() - float(_uptime())
    found = [describe(everyone[p], boot, root) | {"orphan": p not in tree} for p in sorted(tree | marked)]
    return [process for process in found if process["role"] != "supervisor"]


def describe(proc: procs.Proc, boot: float, root: "int | None") -> "dict[str, Any]":
    """One process. ``boot``: the host's start, seconds since the epoch; ``root``: the pid of launch_server."""
    argv = procs.argv(proc.pid)
    role, rank = identify(proc, argv, root)
    ended = procs.exit_of(proc.status) if proc.zombie else {}
    return {
        "pid": proc.pid,
        "ppid": proc.ppid,
        "name": proc.comm,
        "argv": argv,
        "role": role,
        "rank": rank,
        "state": proc.state,
        "started": round(boot + proc.start / _TICK, 2),
        "rss": proc.rss,
        "ended": ended.get("signal") or (f"exit {ended['code']}" if ended else ""),
    }


def identify(proc: procs.Proc, argv: "list[str]", root: "int | None") -> "tuple[str, int | None]":
    """What a process of a run is, and the TP rank of a scheduler that tells it.

    A dead one keeps only its name, cut to 15 characters; a child that has not come as far as its title is ``child``.
    """
    title = procs.role(argv[0]) if argv else ""
    rank = _RANK.search(title)
    if rank:
        return "scheduler", int(rank.group(1))
    if title:
        return "tokenizer" if title.startswith("tokenizer") else title, None  # tokenizer_worker:PID, one of several
    if proc.pid == root:
        return "launcher", None
    return _DEAD.get(proc.comm) or _by_words(proc.comm, " ".join(argv)), None


def _by_words(name: str, line: str) -> str:
    for role, there in (
        ("supervisor", "run-exec" in line and ".pyz" in line),
        ("resource-tracker", "resource_tracker" in line),
        ("compile-worker", "compile_worker" in line),
        ("compiler", name in COMPILERS),
        ("child", "multiprocessing" in line),
    ):
        if there:
            return role
    return "other"


def _serves(argv: "list[str]", port: int) -> bool:
    if not any("sglang.launch_server" in word or word.endswith("/sglang") for word in argv[:4]):
        return False
    return f"--port={port}" in argv or ("--port", str(port)) in pairwise(argv)


def _uptime() -> str:
    with open("/proc/uptime", encoding="ascii") as file:
        return file.read().split()[0]
