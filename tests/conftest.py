"""Fixtures for every test that needs a host."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from hsops.core.inventory import HostSpec
from hsops.lab import sshd
from tests.hosts import Server, ServerFactory, host_spec, inventory_text

__all__ = ["Server", "ServerFactory", "inventory_text"]

hypothesis.settings.register_profile("hsops", deadline=None)  # a busy machine is no fault of what is tested
hypothesis.settings.load_profile("hsops")


def pytest_configure() -> None:
    """Ctrl-C works: a script that starts the tests in the background has it ignored, here and in all they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
