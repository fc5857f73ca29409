"""Python stacks that a run's own processes write on a signal: for where nobody may look into them from outside.

A server that hsops starts finds ``sitecustomize.py`` of its run directory first on Python's path. Its main process and
ranks register faulthandler for ``SIGNAL`` there. The handler is C code: it answers out of a busy loop and out of a call
that blocks, which is begun again (SA_RESTART). Nobody is asked who did not register: the signal would end it.
"""

import contextlib
import os
import re
import signal
import time
from typing import Any

from hsops.agent.probe_stacks import FRAMES, shorten
from hsops.agent.probe_tools import state

SIGNAL = signal.SIGRTMIN + 9
_PATIENCE_S, _QUIET_S = 1.5, 0.05  # a whole answer takes a millisecond, on a busy machine with pauses in it
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_SITE = '''"""hsops: stacks on a signal, where ptrace is not allowed. The next sitecustomize on the path runs, too."""
import sys


def _register():
    import faulthandler
    import os

    if any("multiprocessing.spawn" in word or "sglang" in word for word in sys.orig_argv):
        path = os.path.join(os.path.dirname(__file__), "stacks.%d" % os.getpid())
        stacks = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        faulthandler.register({signal}, file=stacks)


def _other():
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    from os.path import dirname, realpath

    here = realpath(dirname(__file__))
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if realpath(path) != here])
    if spec and spec.loader:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    _register()
except Exception:
    pass  # the server comes first
_other()
'''


def prepare(run: str, path: str) -> str:
    """Lay the module into a run directory; Python's path for the server, before ``path``. Raises OSError."""
    folder = os.path.join(run, "site")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as file:
        file.write(_SITE.replace("{signal}", str(int(SIGNAL))))
    return f"{folder}:{path}" if path else folder


def dump(run: str, pids: "list[int]") -> "dict[int, dict[str, Any]]":
    """One look at each process, as ``probe_stacks.dump`` gives it. ``run``: the run directory."""
    before = {pid: _ask(os.path.join(run, "site", f"stacks.{pid}"), pid) for pid in pids}
    until = time.monotonic() + _PATIENCE_S
    return {pid: _answer(pid, asked, until) for pid, asked in before.items()}


def parse(text: str) -> "list[dict[str, Any]]":
    """Threads as faulthandler writes them, the one that got the signal first: that is the main thread."""
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        match = _FRAME.match(line)
        if match and found:
            if len(found[-1]["frames"]) < FRAMES:
                found[-1]["frames"].append([match[3], shorten(match[1]), int(match[2])])
        elif line.startswith(("Thread 0x", "Current thread 0x")):
            main = line.startswith("C")
            found.append({"name": "MainThread" if main else "?", "main": main, "active": main, "frames": []})
    return sorted(found, key=lambda thread: not thread["main"])[:4]


def _ask(path: str, pid: int) -> "tuple[str, int] | str":
    """Send the signal; where the answer begins in the file, or why nobody was asked."""
    try:
        size = os.stat(path).st_size
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt:"))
        if not caught >> (SIGNAL - 1) & 1:
            return "it did not register for the signal"
        if state(pid) in ("T", "t"):
            return "it is stopped"
        os.kill(pid, SIGNAL)
    except (OSError, StopIteration):
        return "it was not started by this version of hsops"
    return path, size


def _answer(pid: int, asked: "tuple[str, int] | str", until: float) -> "dict[str, Any]":
    if isinstance(asked, str):
        return {"why": "not-found", "message": f"pid {pid} has no stacks on a signal: {asked}"}
    path, size = asked
    text = b""
    while time.monotonic() < until:
        time.sleep(_QUIET_S)
        with contextlib.suppress(OSError), open(path, "rb") as file:
            file.seek(size)
            before, text = text, file.read()
            if text == before and b"Current thread" in text:
                return {"threads": parse(text.decode("utf-8", "replace"))}
    return {"why": "timed-out", "message": f"pid {pid} did not answer the signal: stopped, or asleep in the kernel"}
