"""Fixtures for every test that needs a host."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

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


@pytest.fixture(scope="session")
def new_server() -> Iterator[ServerFactory]:
    """A function that starts one more server: ``new_server("name", extra=("sshd_config line",))``."""
    base = Path(tempfile.mkdtemp(prefix="hsops-sshd-"))
    folders: list[Path] = []

    def start(name: str, *, extra: tuple[str, ...] = ()) -> Server:
        folder = base / f"{len(folders)}-{name}"
        folders.append(folder)
        sshd.start(folder, alias=name, extra=extra)
        return Server(folder, host_spec(name, folder))

    yield start
    for folder in folders:
        sshd.stop(folder)
    shutil.rmtree(base)


@pytest.fixture(scope="session")
def server(new_server: ServerFactory) -> Server:
    """One server for the whole session; tests must leave it running."""
    return new_server("practice")


@pytest.fixture(scope="session")
def sshd_host(server: Server) -> HostSpec:
    """The session's server as an inventory's host."""
    return server.spec


@pytest.fixture
def write_inventory(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes an inventory for hosts: ``write_inventory(spec, more="servers: {}") -> path``."""

    def write(*specs: HostSpec, more: str = "") -> Path:
        path = tmp_path / "inventory.yaml"
        path.write_text(inventory_text(*specs) + more)
        return path

    return write


def inventory_text(*specs: HostSpec) -> str:
    """The ``hosts`` section for ``specs``."""
    lines = ["hosts:"]
    for spec in specs:
        lines.append(f"  {spec.name}:")
        given = spec.model_dump(exclude={"name"}, exclude_none=True)
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
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
