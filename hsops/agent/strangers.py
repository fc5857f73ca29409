"""SGLang servers that no run of this state folder stands for: somebody started them by hand, or another's hsops did."""

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from hsops.agent import procs

_SERVER = re.compile(r"^sglang$|^sglang\.(launch_server|srt\.)|/sglang$|(^|/)sglang/launch_server\.py$")


_TAKES = re.compile(r"-[bBdEiIOPqRsSuvx]*([mcWX])(.*)", re.DOTALL)  # flags of Python, the last of which has a value


def strangers(root: str, alive: "Iterable[str]") -> "list[dict[str, Any]]":
    """Servers that read files below ``root`` and belong to none of the runs ``alive``, as ``runs.loaded`` tells runs.

    Told is the launcher of each: ``pid``, ``created`` (seconds since the epoch), and in ``id`` the run that it shows to
    be of, in another state folder or ended; empty: hsops did not start it.
    """
    servers: dict[int, set[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if is_sglang(procs.argv(pid)) and _same_files(pid):
            servers.setdefault(_launcher(pid), {pid}).add(pid)
    found = []
    for pid, own in sorted(servers.items()):
        run = next(filter(None, map(procs.run_of, sorted({pid, *own}))), "")
        proc = procs.look(pid)
        if proc and run not in alive and _reads(pid, root):
            told = {"server": "", "patches": None, "reads": True, "pid": pid}
            found.append({"id": run, "created": _since_epoch(proc.start), **told})
    return found


def leads(words: "Iterable[str]", folders: "Iterable[str]", root: str) -> bool:
    """One of the absolute ``words`` is ``root`` or lies below it, or one of ``folders`` does so or has it below itself.

    A word may name what a dead disk holds, or ``/``: links in it are not followed, and what lies above says nothing.
    """
    named = [os.path.abspath(word) for word in words if word.startswith("/")]
    meant = [os.path.realpath(folder) for folder in folders if folder.startswith("/")]
    below = any(f"{one}/".startswith(f"{root}/") for one in (*named, *meant))
    return below or any(f"{root}/".startswith(f"{one}/".replace("//", "/")) for one in meant)


def imports(env: "Mapping[str, str]") -> "list[str]":
    """The folders of PYTHONPATH."""
    return [os.path.realpath(folder) for folder in env.get("PYTHONPATH", "").split(":") if folder.startswith("/")]


def values(words: "Iterable[str]") -> "list[str]":
    """What a command line may name files by."""
    return [word.rpartition("=")[2] for word in words][1:]


def _same_files(pid: int) -> bool:
    """It sees the files that this process sees; supposed of one that cannot be asked; not so a container."""
    spaces = set()
    for who in ("self", pid):
        with contextlib.suppress(OSError):
            spaces.add(os.readlink(f"/proc/{who}/ns/mnt"))
    return len(spaces) < 2


def is_sglang(words: "list[str]") -> bool:
    """A command line is one of its ranks and helpers, which name themselves, or Python's that runs its server."""
    if words[0].startswith("sglang::"):
        return True
    return os.path.basename(words[0]).startswith("python") and bool(_SERVER.search(_program(words[1:])))


def _program(words: "list[str]") -> str:
    """The module or script that Python runs; empty: none."""
    left = iter(words)
    for word in left:
        if not word.startswith("-"):
            return word
        if flag := _TAKES.match(word):
            value = flag[2] or next(left, "")
            if flag[1] in "mc":
                return value if flag[1] == "m" else ""
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
    if leads([*imports(env), *values(words)], [prefix, env.get("VIRTUAL_ENV", "")], root):
        return True
    if prefix.startswith("/") and os.path.exists(f"{prefix}/pyvenv.cfg"):
        return False
    return any(path.startswith(f"{root}/") for path in procs.files(pid))


def _since_epoch(start: int) -> float:
    """When a process started, from its ticks since boot."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + start / os.sysconf("SC_CLK_TCK")
