"""System calls of a main thread for about a second, by strace: what it calls, how often, on which kind of file.

strace stops its target for an instant at every call, so it is used on suspects only and last. It ends by itself: the
kernel signals it when the agent dies (PR_SET_PDEATHSIG), and it detaches on that signal. Afterwards it is checked that
nobody traces the target and that it is not stopped.
"""

import ctypes
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections import Counter
from typing import Any

from hsops.agent.probe_tools import CouldNot, denied, state, tracer

_LINE = re.compile(r"^(\w+)\((?:(\d+)<([^>]*(?:\[[^\]]*\])?)>)?(?:.*?, (\d+)\))?")
_ATTACHED = b" attached"
_LIMIT = 4 << 20
_PR_SET_PDEATHSIG = 1
_TOP = 8
_DETACH_S = 1.0


def find() -> str:
    """Where strace is.

    Raises:
        CouldNot: ``not-found``.
    """
    tool = shutil.which("strace", path=os.environ.get("PATH", "") + ":/usr/bin:/usr/local/bin")
    if tool is None:
        raise CouldNot("not-found", "strace is not installed")
    return tool


def trace(tool: str, pids: "list[int]", seconds: float, patience: float) -> "dict[int, dict[str, Any]]":
    """Trace the main threads of ``pids`` at once, for ``seconds`` from when the last of them is attached.

    ``patience``: seconds until all are; those that are not by then had no time.
    Each gives ``{"calls", "seconds", "top": [[call, target, count], ...], "eventfd_writes", "detached"}`` or
    ``{"why", "message"}``. A process that is stopped already is left alone.
    """
    children = {pid: _start(tool, pid) for pid in pids if state(pid) not in ("T", "t", "Z", "X", "")}
    output, since = _read(children, seconds, patience)
    ended = time.monotonic()
    _end(list(children.values()))
    return {pid: _summary(pid, bytes(output[pid]), ended - since.get(pid, ended), patience) for pid in children}


def parse(text: str) -> "Counter[tuple[str, str]]":
    """Counts of (call, target) from strace's lines; the target is the kind of file of the first argument."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            counts[match.group(1), kind_of(match.group(3) or "")] += 1
    return counts


def eventfd_writes(text: str) -> int:
    """Writes of at most 8 bytes to an eventfd: what a scheduler does that only wakes somebody."""
    return len(re.findall(r"^write\(\d+<anon_inode:\[?eventfd\]?>, \"[^\"]*\"(?:\.\.\.)?, [1-8]\)", text, re.MULTILINE))


def kind_of(target: str) -> str:
    """The kind of a file: ``anon_inode:[eventfd]`` -> ``eventfd``, ``socket:[123]`` -> ``socket``; else the path."""
    if target.startswith("anon_inode:"):
        return target.removeprefix("anon_inode:").strip("[]")
    kind = target.partition(":[")[0]
    return kind.partition(":")[0] if kind.upper().startswith(("TCP", "UDP", "UNIX")) else kind


def _start(tool: str, pid: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [tool, "-y", "-s", "8", "-e", "signal=none", "-p", str(pid)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - no other way to outlive nobody; the agent holds no lock here
        start_new_session=True,
    )


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _read(
    children: "dict[int, subprocess.Popen[bytes]]", seconds: float, patience: float
) -> "tuple[dict[int, bytearray], dict[int, float]]":
    """What they say, and since when each is attached: where every core is taken, one may take seconds to come to it."""
    output: dict[int, bytearray] = {pid: bytearray() for pid in children}
    since: dict[int, float] = {}
    pipes = {child.stderr.fileno(): pid for pid, child in children.items() if child.stderr}
    until, all_there = time.monotonic() + patience, False
    while pipes and (left := until - time.monotonic()) > 0:
        for fd in select.select(list(pipes), [], [], left)[0]:
            pid, data = pipes[fd], os.read(fd, 1 << 16)
            output[pid] += data
            if pid not in since and _ATTACHED in output[pid]:
                since[pid] = time.monotonic()
            if not data or len(output[pid]) > _LIMIT:
                del pipes[fd]
        if not all_there and since.keys() >= set(pipes.values()):
            until, all_there = time.monotonic() + seconds, True
    return output, since


def _end(children: "list[subprocess.Popen[bytes]]") -> None:
    """Ask them all to detach; a full pipe would keep one from coming to the signal, so the pipes are closed first."""
    for child in children:
        if child.stderr:
            child.stderr.close()
        child.send_signal(signal.SIGINT)
    until = time.monotonic() + _DETACH_S
    while any(child.poll() is None for child in children) and time.monotonic() < until:
        time.sleep(0.01)
    for child in children:
        child.kill()  # only where it has not ended: the kernel detaches and resumes the target then
        child.wait()


def _summary(pid: int, output: bytes, passed: float, patience: float) -> "dict[str, Any]":
    text = output.decode("utf-8", "replace")
    detached = tracer(pid) == 0 and state(pid) not in ("t", "T")
    if _ATTACHED not in output:
        said = text.strip().splitlines() or [f"strace was not attached within {patience:.3g} s"]
        why = "not-permitted" if denied(said) else "failed" if text.strip() else "timed-out"
        return {"why": why, "message": said[0][:200], "detached": detached}
    counts = parse(text)
    return {
        "calls": sum(counts.values()),
        "seconds": round(passed, 2),
        "top": [[call, target, count] for (call, target), count in counts.most_common(_TOP)],
        "eventfd_writes": eventfd_writes(text),
        "detached": detached,
    }
