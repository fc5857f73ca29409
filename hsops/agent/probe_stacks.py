"""Python stacks by ``py-spy dump --nonblocking``: read from outside, the process is never stopped."""

import importlib.metadata
import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hsops.agent.probe_tools import CouldNot, denied

FRAMES = 40
_THREADS = 3
_TRIES = 4  # a stack that moves while it is read gives "Failed to get stack traces"; each try takes about 10 ms


def find(argv: "list[str]") -> str:
    """Where py-spy is: beside the server's interpreter, in the agent's environment, or on PATH.

    Args:
        argv: the launcher's command line; its first word is the server's interpreter.

    Raises:
        CouldNot: ``not-found``.
    """
    places = [os.path.join(os.path.dirname(argv[0]), "py-spy")] if argv and os.sep in argv[0] else []
    try:
        distribution = importlib.metadata.distribution("py-spy")
        files = distribution.files or []
        places += [str(distribution.locate_file(file)) for file in files if file.name == "py-spy"]
    except importlib.metadata.PackageNotFoundError:
        pass
    found = next((place for place in places if os.access(place, os.X_OK)), None) or shutil.which("py-spy")
    if found is None:
        raise CouldNot("not-found", "py-spy is neither beside the server's Python nor on PATH: pip install py-spy")
    return found


def dump(tool: str, pids: "list[int]", timeout: float, *, native: bool = False) -> "dict[int, dict[str, Any]]":
    """One dump of each process, all at once: ``{"threads": [...]}`` or ``{"why", "message"}`` a process.

    ``native``: with frames of C and C++, for which py-spy stops the process.
    """
    with ThreadPoolExecutor(max(1, len(pids))) as pool:
        return dict(zip(pids, pool.map(lambda pid: _dump_one(tool, pid, timeout, native=native), pids), strict=True))


def _dump_one(tool: str, pid: int, timeout: float, *, native: bool) -> "dict[str, Any]":
    found: dict[str, Any] = {}
    for _ in range(_TRIES):
        found = _dump_once(tool, pid, timeout, "--native" if native else "--nonblocking")
        if found.get("why") != "failed":
            break
    return found


def _dump_once(tool: str, pid: int, timeout: float, how: str) -> "dict[str, Any]":
    argv = [tool, "dump", how, "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False)
        if done.returncode == 0:
            return {"threads": threads(json.loads(done.stdout), pid)}
    except subprocess.TimeoutExpired:
        return {"why": "timed-out", "message": f"py-spy was not done after {timeout:g} s"}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {"why": "failed", "message": f"{type(error).__name__}: {error}"[:200]}
    said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no output"]
    return {"why": "not-permitted" if denied(said) else "failed", "message": said[0][:200]}


def threads(raw: "list[dict[str, Any]]", pid: int) -> "list[dict[str, Any]]":
    """The main thread first, then up to three active ones; frames from the innermost outwards."""
    main = [t for t in raw if t.get("os_thread_id") == pid or t.get("thread_name") == "MainThread"][:1]
    others = [t for t in raw if t["active"] and t not in main][:_THREADS]
    return [
        {
            "name": thread.get("thread_name") or "?",
            "main": thread in main,
            "active": thread["active"],
            "gil": thread["owns_gil"],
            "frames": [[f["name"], shorten(f["filename"]), f["line"]] for f in thread["frames"][:FRAMES]],
        }
        for thread in main + others
    ]


def shorten(path: str) -> str:
    """A source file below its import root: ``sglang/srt/managers/scheduler.py``."""
    for mark in ("/site-packages/", "/dist-packages/", "/python/sglang/"):
        if mark in path:
            tail = path.rsplit(mark, maxsplit=1)[-1]
            return f"sglang/{tail}" if mark == "/python/sglang/" else tail
    return "/".join(path.split("/")[-2:])
