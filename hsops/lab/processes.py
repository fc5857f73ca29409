"""Processes of this machine, told apart by pid and start time."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil


def started_at(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot; None when there is none (a zombie is none)."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else int(fields[18])


def end_tree(pid: int, *, patience: float) -> None:
    """End a process and all its descendants: SIGTERM, then SIGKILL after ``patience`` seconds.

    The root is frozen while its tree is read, so that it cannot start another child meanwhile.
    """
    try:
        root = psutil.Process(pid)
        root.suspend()
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    with contextlib.suppress(psutil.NoSuchProcess):
        root.resume()
    _, stubborn = psutil.wait_procs(tree, timeout=patience)
    for process in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stubborn, timeout=patience)
