"""Who belongs to a run: its process tree, what fell out of it, and what each process is."""

import os
import re
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

COMPILERS = frozenset(
    {"nvcc", "cicc", "ptxas", "fatbinary", "nvlink", "cudafe++", "ninja", "ld", "collect2", "as"}
    | {"cc1", "cc1plus", "gcc", "g++", "clang", "clang++"}
)
RUN_VARIABLES = (b"HSOPS_RUN=", b"SGLANG_HS_RUN=")
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TITLE = re.compile(r"^sglang::(scheduler|detokenizer|tokenizer)")
_RANK = re.compile(r"TP(\d+)")


def find(*, pid: "int | None", run: "str | None", port: "int | None") -> "list[dict[str, Any]]":
    """The processes of a run: the tree below ``pid``, everything that carries the run's id in its environment, and,
    when neither is known, the tree below a ``launch_server`` that was started for ``port``.

    A process outside the launcher's tree is marked ``orphan``.
    """
    everything = {process["pid"]: process for process in processes()}
    root = pid if pid in everything else None
    if pid is None and port is not None:
        root = next((p["pid"] for p in everything.values() if _serves(p, port)), None)
    tree = set(_below(everything.values(), root)) if root else set()
    tagged = {p for p in everything if run and _carries(p, run.encode())}
    found = [everything[p] for p in sorted(tree | tagged)]
    for process in found:
        process["orphan"] = process["pid"] not in tree
        process["role"], process["rank"] = identify(process, root)
    return [p for p in found if p["role"] != "supervisor"]


def processes() -> "Iterator[dict[str, Any]]":
    """Every process that this user can see."""
    boot = time.time() - float(_read("/proc/uptime").split()[0])
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = describe(int(name), boot)
            if process:
                yield process


def describe(pid: int, boot: float) -> "dict[str, Any] | None":
    """One process, or None when it is gone. ``boot`` is the host's start in seconds since the epoch."""
    try:
        stat = _read(f"/proc/{pid}/stat")
        argv = _read(f"/proc/{pid}/cmdline").rstrip("\0").split("\0")
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return {
        "pid": pid,
        "ppid": int(fields[1]),
        "name": stat[stat.index("(") + 1 : stat.rindex(")")],
        "argv": argv,
        "state": fields[0],
        "threads": int(fields[17]),
        "started": round(boot + int(fields[19]) / _TICK, 2),
        "rss": int(fields[21]) * _PAGE,
    }


def identify(process: "dict[str, Any]", root: "int | None") -> "tuple[str, int | None]":
    """What a process of a run is, and the TP rank of a scheduler that tells it.

    SGLang titles its children ``sglang::scheduler_TP3``; at TP 1 the title has no rank. A dead one keeps only its
    name, cut to 15 characters; a child that has not come as far as its title is ``child``.
    """
    title = process["argv"][0]
    match = _TITLE.match(title)
    if match and match.group(1) == "scheduler":
        rank = _RANK.search(title)
        return "scheduler", int(rank.group(1)) if rank else 0
    if match:
        return match.group(1), None
    if process["pid"] == root:
        return "launcher", None
    return _by_words(process), None


def _by_words(process: "dict[str, Any]") -> str:
    name, line = process["name"], " ".join(process["argv"])
    for role, there in (
        ("scheduler", name.startswith("sglang::sched")),
        ("detokenizer", name.startswith("sglang::detok")),
        ("supervisor", "run-exec" in line and ".pyz" in line),
        ("resource-tracker", "resource_tracker" in line),
        ("compile-worker", "compile_worker" in line),
        ("compiler", name in COMPILERS),
        ("child", "multiprocessing" in line),
    ):
        if there:
            return role
    return "other"


def _below(everything: "Iterable[dict[str, Any]]", root: int) -> "Iterator[int]":
    children: dict[int, list[int]] = {}
    for process in everything:
        children.setdefault(process["ppid"], []).append(process["pid"])
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, ())


def _serves(process: "dict[str, Any]", port: int) -> bool:
    argv = process["argv"]
    if not any("sglang.launch_server" in word or word.endswith("/sglang") for word in argv[:4]):
        return False
    return f"--port={port}" in argv or ("--port", str(port)) in pairwise(argv)


def _carries(pid: int, run: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return any(variable + run in words for variable in RUN_VARIABLES)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
