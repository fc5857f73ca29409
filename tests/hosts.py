"""What tests with real hosts share."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from hsops.core.command import Command
from hsops.core.inventory import HostSpec
from hsops.lab import sshd


@dataclass(frozen=True)
class Server:
    """A throw-away OpenSSH server on 127.0.0.1.

    Args:
        folder: keys, ssh_config, known_hosts and log of ``hsops.lab.sshd``.
        spec: how an inventory names it; its state lies under ``state`` of the folder.
    """

    folder: Path
    spec: HostSpec

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        running = sshd.status(self.folder)
        assert running
        return running.port


ServerFactory = Callable[..., Server]
Change = Callable[..., HostSpec]


def inventory_text(*specs: HostSpec) -> str:
    """The ``hosts`` section for ``specs``."""
    lines = ["hosts:"]
    for spec in specs:
        lines.append(f"  {spec.name}:")
        given = spec.model_dump(mode="json", exclude={"name"}, exclude_defaults=True)
        lines += [f"    {key}: {value!r}" for key, value in given.items()]
    return "\n".join(lines) + "\n"


def host_spec(name: str, folder: Path) -> HostSpec:
    """The inventory entry for the server in ``folder``, with this Python as the server's."""
    return HostSpec(
        name=name,
        ssh=name,
        ssh_config=str(folder / "ssh_config"),
        python=sys.executable,
        state_dir=str(folder / "state"),
        dumps=str(folder / "dumps"),
    )


def run_dir() -> dict[str, str]:
    """The environment for child processes that must find hsops without an installation."""
    path = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def sh(script: str, *args: str) -> Command:
    """A shell script as a command."""
    return Command(("sh", "-c", script, "sh", *args))


def wait_gone(pid: int, patience: float = 30.0) -> bool:
    """Whether process ``pid`` ends in time (a zombie has ended)."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        try:
            psutil.Process(pid).wait(0.2)
        except psutil.TimeoutExpired:
            continue
        except psutil.NoSuchProcess:
            return True
        return True
    return False


@contextmanager
def closed_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses whoever comes, and that nobody else can take meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and never listens
        yield int(held.getsockname()[1])


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "") -> str:
    """A new key pair; returns the fingerprint that OpenSSH shows."""
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)], check=True, timeout=60)
    return fingerprint(path)


def fingerprint(path: Path) -> str:
    """``SHA256:...`` of a public key file."""
    out = subprocess.run(["ssh-keygen", "-lf", f"{path}.pub"], capture_output=True, text=True, check=True, timeout=60)
    return out.stdout.split()[1]
