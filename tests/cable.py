"""A network cable between a client and this machine, to be pulled: a network namespace and a veth pair."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.hosts import wait_gone

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Cable:
    """One that is plugged in.

    Args:
        address: this machine's end, which a client reaches.
        inside: words before a command that make it run at the other end.
        device: the network device at this end.
    """

    address: str
    inside: tuple[str, ...]
    device: str

    def pull(self) -> None:
        """Nothing goes through any more, and nobody is told."""
        _ip("link", "set", self.device, "down")

    def plug(self) -> None:
        """As before."""
        _ip("link", "set", self.device, "up")


def why_not() -> str:
    """Why there is no cable here; "" when there is one."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    if not shutil.which("ip", path=_PATH):
        return "there is no ip: apt-get install iproute2"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False, timeout=20)
    return "" if tried.returncode == 0 else f"unshare --net: {tried.stderr.decode().strip()}"


@contextmanager
def cable() -> Iterator[Cable]:
    """A cable while the context is open; nothing of it is left."""
    number = (os.getpid() * 16 + next(_NUMBERS)) % 32000
    net = f"198.18.{number // 64 % 256}.{number % 64 * 4}".rpartition(".")  # for tests, by RFC 2544
    here, there = (f"{net[0]}.{int(net[2]) + end}" for end in (1, 2))
    near, far = f"hs{number}a", f"hs{number}b"
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"], stdout=subprocess.PIPE, text=True
    )
    inside = ("nsenter", "--target", str(holder.pid), "--net", "--")
    try:
        assert holder.stdout and holder.stdout.readline() == "ready\n"
        _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", str(holder.pid))
        _ip("address", "add", f"{here}/30", "dev", near)
        _ip("link", "set", near, "up")
        for words in (("address", "add", f"{there}/30", "dev", far), ("link", "set", far, "up"),
                      ("link", "set", "lo", "up")):  # fmt: skip
            _ip(*words, inside=inside)
        yield Cable(here, inside, near)
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "delete", near)
        holder.kill()
        holder.wait(10)
        assert holder.stdout
        holder.stdout.close()
        assert wait_gone(holder.pid)


def reach_through(made: Cable, folder: Path) -> None:
    """Let the ssh_config of a throw-away server (``hsops.lab.sshd``), which listens there too, lead through it."""
    config, known = folder / "ssh_config", folder / "known_hosts"
    known.write_text(known.read_text() + known.read_text().replace("127.0.0.1", made.address))
    config.write_text(config.read_text().replace("HostName 127.0.0.1", f"HostName {made.address}"))


_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _ip(*words: str, inside: tuple[str, ...] = ()) -> None:
    env = {**os.environ, "PATH": _PATH}
    subprocess.run([*inside, "ip", *words], check=True, capture_output=True, timeout=20, env=env)
