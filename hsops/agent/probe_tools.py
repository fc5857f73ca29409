"""What probes share: the reason why one could not look, and how a refusal of the kernel reads."""

import contextlib
import os
from collections.abc import Iterable, Iterator

from hsops.agent import procs

NICE = -10
_DENIED = ("permission denied", "operation not permitted", "not permitted", "eperm")


class CouldNot(Exception):  # noqa: N818 - a missing tool is evidence, not a failure
    """A probe could not look.

    Args:
        why: ``not-found``, ``not-permitted``, ``timed-out``, ``not-needed`` or ``failed``.
        message: one sentence, with what would make it possible.
    """

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why, self.message = why, message


def denied(lines: "Iterable[str]") -> bool:
    """A tool's output says that ptrace or /proc was refused. Tools have no code for it, only words."""
    return any(word in line.lower() for line in lines for word in _DENIED)


def state(pid: int) -> str:
    """One letter: R, S, D, T (stopped), t (traced), Z; empty when the process is gone."""
    proc = procs.look(pid)
    return proc.state if proc else ""


def tracer(pid: int) -> int:
    """Who traces a process; 0 for nobody."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("TracerPid:")), 0)
    except OSError:
        return 0


def held(pids: "Iterable[int]") -> "Iterator[str]":
    """The threads of ``pids`` that somebody traces or that are stopped: ``tid: letter, tracer``."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for tid in os.listdir(f"/proc/{pid}/task"):
                letter, by = state(int(tid)), tracer(int(tid))
                if letter in ("t", "T") or by:
                    yield f"{tid}: {letter}, {by}"


def is_root() -> bool:
    """The agent may look at everything."""
    return os.geteuid() == 0


@contextlib.contextmanager
def first_in_line() -> "Iterator[None]":
    """Run before others, with the tools it starts: ranks that spin on every core leave a look no time otherwise.

    Only root may; where it may not, nothing changes.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(before, NICE))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before)
