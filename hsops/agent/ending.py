"""End processes, each known by pid and start time: SIGTERM, patience, SIGKILL; and look until nothing is left."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from hsops.agent import procs

_KILL_S = 15.0  # a process in an uninterruptible sleep (a wedged GPU driver) outlives SIGKILL for a while
_TRACKER = "multiprocessing.resource_tracker"  # unlinks the shared memory of the others once they are gone
_TRACKER_S = 3.0  # for that; killed with the rest it would leave 24 MB of /dev/shm behind for every run


class Ending:
    """Ends what ``rest()`` tells, which is looked at anew every time: a dying tree may still fork."""

    def __init__(self, rest: "Callable[[], list[procs.Proc]]") -> None:
        self._rest = rest
        self.known: dict[tuple[int, int], str] = {}  # pid and start -> name
        self._forced: set[tuple[int, int]] = set()
        self._note(rest())

    @property
    def pids(self) -> "list[int]":
        """All that were seen."""
        return [pid for pid, _ in self.known]

    def end(
        self, first: "Sequence[tuple[int, int]]", grace: float, look: "Callable[[list[int]], None]" = lambda _: None
    ) -> None:
        """SIGTERM to ``first`` (pid and start), ``grace`` seconds for these to end, then SIGKILL to all that is left.

        ``look`` is told the pids of those that are left before SIGKILL.
        """
        asked = [one for one in first if procs.send(*one, signal.SIGTERM)]
        until(lambda: not any(procs.is_alive(*one) for one in asked), grace if asked else 0.0)
        look([proc.pid for proc in self._rest()])
        spare = time.monotonic() + _TRACKER_S
        until(lambda: not self._kill(spare), _KILL_S)

    def ended(self) -> "list[dict[str, Any]]":
        """``pid``, ``command`` and ``by`` (TERM or KILL) of those that are gone."""
        gone = [one for one in self.known if not procs.is_alive(*one)]
        return [{"pid": one[0], "command": self.known[one], "by": _BY[one in self._forced]} for one in gone]

    def left(self) -> "list[dict[str, Any]]":
        """``pid``, ``command`` and ``state`` of those that are still there."""
        return [{"pid": p.pid, "command": procs.title(p.pid)[:120], "state": p.state} for p in self._rest()]

    def _kill(self, spare: float) -> bool:
        """SIGKILL whatever lives; True when there was something."""
        rest = self._rest()
        self._note(rest)
        for proc in rest:
            if time.monotonic() < spare and _TRACKER in procs.title(proc.pid):
                continue
            if procs.send(proc.pid, proc.start, signal.SIGKILL):
                self._forced.add((proc.pid, proc.start))
        return bool(rest)

    def _note(self, some: "list[procs.Proc]") -> None:
        for proc in some:
            title = procs.title(proc.pid)
            self.known.setdefault((proc.pid, proc.start), procs.role(title) or title[:120])


_BY = {True: "KILL", False: "TERM"}


def outlive_client() -> None:
    """Leave the group of processes that ends with the client: what is half ended must be ended whole."""
    with contextlib.suppress(OSError):  # it leads a session already
        os.setsid()


def until(done: "Callable[[], bool]", seconds: float, every: float = 0.02) -> bool:
    """Look every 20 ms, or ``every`` seconds, until ``done()`` or the time is over."""
    over = time.monotonic() + seconds
    while not done():
        if time.monotonic() > over:
            return False
        time.sleep(every)
    return True
