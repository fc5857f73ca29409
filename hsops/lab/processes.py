"""Processes of this machine, told apart by pid and start time."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
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


TRACKER = "multiprocessing.resource_tracker"


@dataclass(frozen=True, slots=True)
class Found:
    """A live process. ``started`` tells it from a later one with the same pid; ``title`` is what ``ps`` shows."""

    pid: int
    started: int
    title: str


def running_from(folder: Path) -> list[Found]:
    """The processes whose program lies directly in ``folder``, and their descendants.

    SGLang's ranks overwrite their command line and environment with a title, so the executable decides; where the
    interpreter is a link to another place, the first word of a command line that still is one.
    """
    here = folder.resolve()
    names = {str(here), str(folder)}
    roots = [p for p in psutil.process_iter() if _program_folders(p.pid) & names and p.pid != os.getpid()]
    tree = {p.pid: p for p in roots}
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            tree.update({child.pid: child for child in root.children(recursive=True)})
    found = [(pid, started_at(pid), _title(pid)) for pid in sorted(tree) if pid != os.getpid()]
    return [Found(pid, started, title) for pid, started, title in found if started is not None]


def end_all(folder: Path, *, grace: float, patience: float) -> list[Found]:
    """End everything that ``running_from(folder)`` finds, until nothing is left; returns what was ended.

    First a SIGTERM, then, after ``grace`` seconds, SIGKILL. What still lives after ``patience`` seconds is left for
    the caller to find. Python's resource trackers go last: they end with the processes that they serve, and before
    that remove the shared memory which those leave in /dev/shm (24 MB a server).
    """
    ended: dict[tuple[int, int], Found] = {}
    started = time.monotonic()
    while (alive := running_from(folder)) and time.monotonic() - started < patience:
        force = time.monotonic() - started >= grace
        for process in [p for p in alive if TRACKER not in p.title] or alive:
            if force or (process.pid, process.started) not in ended:
                ended[process.pid, process.started] = process
                _signal(process, signal.SIGKILL if force else signal.SIGTERM)
        _wait(alive, 0.5)
    return list(ended.values())


def _signal(process: Found, number: signal.Signals) -> None:
    if started_at(process.pid) == process.started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _wait(processes: list[Found], seconds: float) -> None:
    """Until all have ended, or ``seconds`` are over."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(started_at(p.pid) == p.started for p in processes):
        time.sleep(0.02)


def _program_folders(pid: int) -> set[str]:
    """Where the program of ``pid`` lies, by its executable and by the first word of its command line."""
    programs = set()
    with contextlib.suppress(OSError):
        programs.add(str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(" (deleted)"))
    with contextlib.suppress(OSError):
        programs.add(_words(pid)[0])
    return {str(Path(program).parent) for program in programs if program.startswith("/")}


def _title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return " ".join(_words(pid)).strip()[:200]
    return ""


def _words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")


def daemons(name: str, config: Path) -> list[int]:
    """Processes of the program ``name`` that were started with ``-f config``; a title that repeats it counts."""
    wanted, found = f" -f {config} ", []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            words = _words(pid)
            program = Path(words[0].split(":")[0]).name
            if program == name and wanted in f"{' '.join(words)} " and started_at(pid) is not None:
                found.append(pid)
    return found
