"""What a process does: two looks at /proc some time apart, and many short looks at its main thread in between.

No process is stopped. CPU is in percent of one core, rates are per second.
"""

import contextlib
import os
import time
from collections import Counter
from typing import Any

from hsops.agent.probe_tools import state

EVERY_S = 0.05
_TICK = os.sysconf("SC_CLK_TCK")
_IO = ("rchar", "read_bytes", "write_bytes", "syscr", "syscw")
_BUSY_THREADS = 5


def sample(pids: "list[int]", seconds: float) -> "dict[int, dict[str, Any]]":
    """What each process did in about ``seconds``; one that went away meanwhile is left out.

    ``main`` tells the main thread: its state and wait channel, its system call in each of about 20 looks
    (``running`` when it was on a core; -1 when it waits outside a system call), its CPU and context switches.
    """
    if not pids:
        return {}
    before = {pid: _look(pid) for pid in pids}
    started = time.monotonic()
    calls: dict[int, Counter[str]] = {pid: Counter() for pid in pids}
    while time.monotonic() < started + seconds:  # by time, not by count: on a busy machine each look takes longer
        for pid in pids:
            calls[pid][_call(pid)] += 1
        time.sleep(EVERY_S)
    passed = time.monotonic() - started
    found = {}
    for pid in pids:
        first, second = before[pid], _look(pid)
        if first and second:
            found[pid] = _difference(first, second, passed)
            found[pid]["main"]["calls"] = dict(calls[pid].most_common(4))
            found[pid]["main"]["wchan"] = _first_line(f"/proc/{pid}/wchan")
            found[pid]["main"]["at"] = at(pid)
    return found


def _look(pid: int) -> "dict[str, Any] | None":
    try:
        threads = {tid: _stat(f"/proc/{pid}/task/{tid}/stat") for tid in map(int, os.listdir(f"/proc/{pid}/task"))}
        return {
            "pid": pid,
            "process": _stat(f"/proc/{pid}/stat"),
            "threads": {tid: stat for tid, stat in threads.items() if stat},
            "switches": _switches(pid),
            "io": _io(pid),
        }
    except OSError:
        return None


def _difference(first: "dict[str, Any]", second: "dict[str, Any]", passed: float) -> "dict[str, Any]":
    pid = first["pid"]
    threads = {
        tid: _cpu(first["threads"].get(tid), stat, passed) | {"tid": tid, "name": stat["name"], "state": stat["state"]}
        for tid, stat in second["threads"].items()
    }
    main = threads.pop(pid, {"cpu": 0.0, "user": 0.0, "system": 0.0, "state": "?", "tid": pid, "name": "?"})
    for name in ("voluntary", "involuntary"):
        main[name] = round((second["switches"].get(name, 0) - first["switches"].get(name, 0)) / passed, 1)
    busy = sorted((t for t in threads.values() if t["cpu"] >= 1), key=lambda t: -t["cpu"])
    both = second["io"].keys() & first["io"].keys()  # one that changes its user in between hides them in one of the two
    rates = {f"{name}_s": round((second["io"][name] - first["io"][name]) / passed) for name in sorted(both)}
    faults = {
        f"{name}_s": round((second["process"][name] - first["process"][name]) / passed) for name in ("minflt", "majflt")
    }
    return {
        "state": second["process"]["state"],
        **_cpu(first["process"], second["process"], passed),
        **rates,
        **faults,
        "main": main,
        "busy_threads": busy[:_BUSY_THREADS],
    }


def _cpu(first: "dict[str, Any] | None", second: "dict[str, Any]", passed: float) -> "dict[str, Any]":
    spent = {k: (second[k] - first[k]) / _TICK / passed * 100 if first else 0.0 for k in ("user", "system")}
    return {"cpu": round(sum(spent.values()), 1), **{name: round(value, 1) for name, value in spent.items()}}


def _stat(path: str) -> "dict[str, Any]":
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
        rest = text[text.rindex(")") + 2 :].split()
        return {
            "name": text[text.index("(") + 1 : text.rindex(")")],
            "state": rest[0],
            "minflt": int(rest[7]),
            "majflt": int(rest[9]),
            "user": int(rest[11]),
            "system": int(rest[12]),
        }
    return {}


def _switches(pid: int) -> "dict[str, int]":
    found = {}
    with open(f"/proc/{pid}/task/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition("_ctxt_switches:")
            if value:
                found["involuntary" if name.startswith("non") else "voluntary"] = int(value)
    return found


def _io(pid: int) -> "dict[str, int]":
    """Empty when the process belongs to somebody else."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            pairs = (line.split(": ") for line in file)
            return {name: int(value) for name, value in pairs if name in _IO}
    except (OSError, ValueError):
        return {}


def at(pid: int) -> "list[str]":
    """The system call that the main thread is in, and what its first argument is open on; "" for nothing."""
    number, first, *_ = [*_first_line(f"/proc/{pid}/syscall").split(" "), "", ""]
    try:
        return [number, os.readlink(f"/proc/{pid}/fd/{int(first, 16)}")]
    except (OSError, ValueError):
        return [number, ""]


def _call(pid: int) -> str:
    """As the kernel shows it; where it does not, without the right to trace, the state still tells who is on a core."""
    call = _first_line(f"/proc/{pid}/syscall").split(" ")[0]
    return "running" if call == "?" and state(pid) == "R" else call


def _first_line(path: str) -> str:
    """The file's first line, or ``?`` where the kernel or its owner does not show it."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip() or "?"
    except OSError:
        return "?"
