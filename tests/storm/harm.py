"""What happens to a fetch: a table of kinds, each drawn as often as its weight says."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from hsops.lab import sshd
from tests.storm.ground import MIB, Ground

Harm = Callable[[Ground, subprocess.Popen[str], random.Random], int]
"""Does it; returns how many processes it killed."""


@dataclass(frozen=True)
class Kind:
    """One.

    Args:
        name: in the tables.
        weight: how often it is drawn.
        do: does it.
        chunks: so many requests of 64 MiB may have to be sent again for it, if the client does not end over it.
    """

    name: str
    weight: int
    do: Harm
    chunks: int = 0


def client(_: Ground, process: subprocess.Popen[str], __: random.Random) -> int:
    """As the OOM killer does, with all that it started: one piece a stream may be lost."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return 1


def stream(_: Ground, process: subprocess.Popen[str], dice: random.Random) -> int:
    """One of the client's ssh processes."""
    return _kill(dice, [p for p in _below(process.pid) if _name(p) == "ssh"])


def sender(place: Ground, _: subprocess.Popen[str], dice: random.Random) -> int:
    """An agent on the host that sends, or the one that listens beside SSH."""
    return _kill(dice, place.agents("dumps-send", "dumps-direct"))


def session(place: Ground, _: subprocess.Popen[str], dice: random.Random) -> int:
    """One of sshd's processes."""
    return _kill(dice, [p for p in place.sessions() if _name(p) == "sshd"])


def server(place: Ground, _: subprocess.Popen[str], dice: random.Random) -> int:
    """sshd as a whole, with every connection; it is away for a moment."""
    victims = place.sessions()
    sshd.stop(place.base / "sshd")
    killed = sum(_kill(dice, [victim]) for victim in victims)
    time.sleep(dice.random())
    sshd.start(place.base / "sshd", alias="storm")
    return killed + 1


def cut(place: Ground, _: subprocess.Popen[str], dice: random.Random) -> int:
    """The network says nothing for a while, to either side."""
    victims = place.sessions()
    for victim in victims:
        with suppress(psutil.Error):
            victim.suspend()
    time.sleep(3 * dice.random())
    for victim in victims:
        with suppress(psutil.Error):
            victim.resume()
    return 0


def rewrite(place: Ground, _: subprocess.Popen[str], dice: random.Random) -> int:
    """A sample is extracted again while it is copied."""
    place.rewrite(dice.choice(sorted(place.samples)), dice)
    return 0


def flip(place: Ground, _: subprocess.Popen[str], dice: random.Random) -> int:
    """A byte of the next stream over ssh."""
    place.flip(dice.randrange(MIB, 40 * MIB))
    return 0


def full(place: Ground, process: subprocess.Popen[str], _: random.Random) -> int:
    """The local disk is full until the fetch has ended over it, or done without."""
    ballast = place.to / ".ballast"
    handle = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    found = os.statvfs(place.to)
    with suppress(OSError):
        os.posix_fallocate(handle, 0, found.f_bavail * found.f_frsize)
    os.close(handle)
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    ballast.unlink()
    return 0


KINDS = (
    Kind("client killed", 15, client),
    Kind("stream killed", 20, stream),
    Kind("agent killed", 20, sender),
    Kind("sshd's session killed", 20, session),
    Kind("sshd killed", 3, server),
    Kind("network cut", 4, cut),
    Kind("source rewritten", 4, rewrite, 5),
    Kind("byte flipped", 4, flip, 5),
    Kind("disk full", 2, full),
)


def _kill(dice: random.Random, victims: list[psutil.Process]) -> int:
    if not victims:
        return 0
    with suppress(psutil.Error):
        dice.choice(victims).kill()
        return 1
    return 0


def _below(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return str(process.name())
    return ""
