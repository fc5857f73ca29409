"""SGLang servers that no run of this state folder stands for: somebody started them by hand, or another's hsops did."""

import os
import re
import time
from collections.abc import Iterable
from typing import Any

from hsops.agent import procs

_SERVER = re.compile(r"^sglang$|^sglang\.(launch_server|srt\.)|/sglang$|(^|/)sglang/launch_server\.py$")


def strangers(root: str, alive: "Iterable[str]") -> "list[dict[str, Any]]":
    """Servers that read files below ``root`` and belong to none of the runs ``alive``, as ``runs.loaded`` tells runs.

    Told is the launcher of each: ``pid``, ``created`` (seconds since the epoch), and in ``id`` the run that it shows to
    be of, in another state folder or ended; empty: hsops did not start it.
    """
    servers: dict[int, set[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if is_sglang(procs.argv(pid)):
            servers.setdefault(_launcher(pid), {pid}).add(pid)
    found = []
    for pid, own in sorted(servers.items()):
        run = next(filter(None, map(procs.run_of, sorted({pid, *own}))), "")
        proc = procs.look(pid)
        if proc and run not in alive and _reads(pid, root):
            told = {"server": "", "patches": None, "reads": True, "pid": pid}
            found.append({"id": run, "created": _since_epoch(proc.start), **told})
    return found


def below_or_above(paths: "Iterable[str]", root: str) -> bool:
    """One of the absolute ``paths`` lies below ``root`` or has it below itself."""
    both = [(os.path.realpath(path) + "/", root + "/") for path in paths if path.startswith("/")]
    return any(one.startswith(other) or other.startswith(one) for one, other in both)


def is_sglang(words: "list[str]") -> bool:
    """A command line is one of its ranks and helpers, which name themselves, or Python's that runs its server."""
    if words[0].startswith("sglang::"):
        return True
    return os.path.basename(words[0]).startswith("python") and bool(_SERVER.search(_program(words[1:])))


def _program(words: "list[str]") -> str:
    """The module or script that Python runs; empty: none."""
    for i, word in enumerate(words):
        if not word.startswith("-"):
            return word
        if word == "-m":
            return "".join(words[i + 1 : i + 2])
    return ""


def _launcher(pid: int) -> int:
    """Up the tree as far as it is SGLang's; above a rank also any Python of its session: a program with an engine."""
    while (proc := procs.look(pid)) and (parent := procs.look(proc.ppid)):
        rank = procs.argv(pid)[0].startswith("sglang::") and "python" in os.path.basename(procs.argv(parent.pid)[0])
        if not is_sglang(procs.argv(parent.pid)) and not (rank and parent.session == proc.session):
            break
        pid = parent.pid
    return pid


def _reads(pid: int, root: str) -> bool:
    """Its Python, its command line or its environment lead to ``root``, or a file of it is mapped.

    What a server has mapped takes ten milliseconds to read: not asked of one whose virtual environment tells.
    """
    words, env = procs.argv(pid), procs.environment(pid)
    prefix = os.path.dirname(os.path.dirname(words[0]))
    named = [prefix, env.get("VIRTUAL_ENV", ""), *env.get("PYTHONPATH", "").split(":")]
    if below_or_above([*named, *(word.rpartition("=")[2] for word in words[1:])], root):
        return True
    if prefix.startswith("/") and os.path.exists(f"{prefix}/pyvenv.cfg"):
        return False
    return any(path.startswith(f"{root}/") for path in procs.files(pid))


def _since_epoch(start: int) -> float:
    """When a process started, from its ticks since boot."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + start / os.sysconf("SC_CLK_TCK")
