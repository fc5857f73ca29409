"""Did the kernel's OOM killer do it? Three witnesses, the most exact first: the kernel log, the cgroup, the counter."""

import os
import re
import time
from collections.abc import Callable
from typing import Any

_MACHINE = "/proc/vmstat"
_DYING_S = 60.0  # for a killed process to be gone: its memory is freed first


class OomWatch:
    """Remembers how many OOM kills there were, and tells whether there were more just now.

    Counters are a control group's or the machine's: one that rose long ago rose for somebody else's process. Ask often.
    """

    def __init__(self, clock: "Callable[[], float]" = time.monotonic) -> None:
        self._kmsg = _open_kmsg()
        self._killed: set[int] = set()  # pids the kernel log named
        self._counters = counters()
        self._rose: dict[str, float] = {}  # counter -> when, since a kill was last asked for
        self._clock = clock

    def look(self) -> None:
        """Note which counters have risen since the last time."""
        before, self._counters = self._counters, counters()
        self._rose |= {name: self._clock() for name, count in self._counters.items() if count > before.get(name, 0)}

    def killed(self, pid: int) -> bool:
        """``pid``, found dead by SIGKILL just now, was the OOM killer's."""
        self._read_kmsg()
        self.look()
        rose = {name for name, at in self._rose.items() if self._clock() - at < _DYING_S}
        self._rose = {}
        if pid in self._killed or rose - {_MACHINE}:
            return True
        return _MACHINE in rose and self._kmsg < 0  # a readable log would have named the pid

    def _read_kmsg(self) -> None:
        while self._kmsg >= 0:
            try:
                record = os.read(self._kmsg, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:  # records were overwritten before they were read: go on with the oldest left
                continue
            except OSError:
                self._kmsg = -1
                return
            if match := re.search(rb"Killed process (\d+) ", record):
                self._killed.add(int(match.group(1)))


def counters() -> "dict[str, int]":
    """OOM kills of this cgroup and of the machine, as far as they can be read."""
    found = {}
    for path in [_MACHINE, *cgroup_files()]:
        try:
            with open(path, encoding="utf-8") as file:
                match = re.search(r"^oom_kill (\d+)$", file.read(), re.MULTILINE)
        except OSError:
            continue
        if match:
            found[path] = int(match.group(1))
    return found


def cgroup_files() -> "list[str]":
    """Files that count this cgroup's OOM kills: v2's memory.events, v1's memory.oom_control."""
    found = []
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found.append(f"/sys/fs/cgroup{path}/memory.events")
        elif "memory" in controllers.split(","):
            found.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
    return found


def _open_kmsg() -> int:
    """The kernel log from now on; -1 where it may not be read (``kernel.dmesg_restrict``, containers)."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(fd, 0, os.SEEK_END)
    except OSError:
        return -1
    return fd


def verdict(exit_: "dict[str, Any]", pid: int, watch: OomWatch) -> bool:
    """Whether an exit is the OOM killer's: only SIGKILL can be."""
    return exit_["signal"] == "SIGKILL" and watch.killed(pid)
