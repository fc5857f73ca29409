"""A long line between a network namespace and this machine: every packet takes half a round trip.

    python -m tests.slow_line PID NEAR FAR SECONDS

Linux' own netem is not in every kernel; two TUN devices and a process that holds packets back are.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TUNSETIFF, _TUN, _NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU = 65000  # large packets: Python moves few of them a second
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Line:
    """One that stands.

    Args:
        address: this machine's end.
        inside: words before a command that make it run at the other end.
    """

    address: str
    inside: tuple[str, ...]


@contextmanager
def slow_line(round_trip: float) -> Iterator[Line]:
    """A line while the context is open. Needs root and /dev/net/tun."""
    number = (os.getpid() * 16 + next(_NUMBERS)) % 16000
    net = f"198.19.{number // 64}.{number % 64 * 4}".rpartition(".")  # for tests, by RFC 2544
    here, there = (f"{net[0]}.{int(net[2]) + end}" for end in (1, 2))
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"], stdout=subprocess.PIPE
    )
    assert holder.stdout and holder.stdout.readline() == b"ready\n"
    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "tests.slow_line", str(holder.pid), here, there, str(round_trip)]
    env = {**os.environ, "PYTHONPATH": root, "PATH": _PATH}
    mover = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
    try:
        assert mover.stdout and mover.stdout.readline() == b"ready\n"
        yield Line(here, ("nsenter", "--target", str(holder.pid), "--net", "--"))
    finally:
        for process in (mover, holder):
            process.kill()
            process.wait(10)


def main(pid: str, near: str, far: str, round_trip: float) -> None:
    """Make both devices, then move packets."""
    name = f"hsl{os.getpid() % 1_000_000}"
    here = _device(f"{name}a", near, far)
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(open("/proc/self/ns/net"))
        other = stack.enter_context(open(f"/proc/{pid}/ns/net"))
        _enter(other.fileno())
        there = _device(f"{name}b", far, near)
        _enter(own.fileno())
    print("ready", flush=True)
    _move(here, there, round_trip / 2)


def _device(name: str, own: str, peer: str) -> int:
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(handle, _TUNSETIFF, struct.pack("16sH", name.encode(), _TUN | _NO_PI))
    for words in (
        ("address", "add", own, "peer", peer, "dev", name),
        ("link", "set", name, "mtu", str(_MTU), "txqueuelen", "10000", "up"),
    ):
        subprocess.run(["ip", *words], check=True, env={**os.environ, "PATH": _PATH})
    return handle


def _enter(handle: int) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).setns(handle, 0):
        raise OSError(ctypes.get_errno(), "setns")


def _move(here: int, there: int, delay: float) -> None:
    """Packets of either end to the other, each after ``delay`` seconds."""
    other, waiting, count = {here: there, there: here}, list[tuple[float, int, int, bytes]](), itertools.count()
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for handle in select.select([here, there], [], [], left)[0]:
            with contextlib.suppress(BlockingIOError):
                for _ in range(64):
                    packet = os.read(handle, _MTU + 100)
                    heapq.heappush(waiting, (time.monotonic() + delay, next(count), other[handle], packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, target, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # a full queue drops it, as a router does
                os.write(target, packet)


if __name__ == "__main__":
    main(*sys.argv[1:4], float(sys.argv[4]))
