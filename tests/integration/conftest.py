"""Fixtures for tests of the ways to a host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hsops.core.command import Command
from hsops.core.deadline import Deadline
from hsops.core.inventory import HostSpec
from hsops.remote.connect import connect
from hsops.remote.host import Host
from tests.hosts import Change, Server
from tests.running import agent

__all__ = ["agent"]

TRUE = Command(("true",))


@pytest.fixture
def change(server: Server, tmp_path: Path) -> Change:
    """A function that gives the session's host with some options of its ssh_config replaced."""

    def change(more: str = "", **options: str) -> HostSpec:
        lines = (server.folder / "ssh_config").read_text().splitlines()
        kept = [line for line in lines if line.split()[0] not in options]
        path = tmp_path / "ssh_config"
        path.write_text("\n".join([*kept, *(f"  {k} {v}" for k, v in options.items()), more]) + "\n")
        return server.spec.model_copy(update={"ssh_config": str(path)})

    return change


@pytest.fixture(params=["control", "bulk"])
def reach(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """A function that runs ``true`` on a host through one of the two doors."""
    hosts: list[Host] = []

    def reach(spec: HostSpec, *, accept_new: bool = False, seconds: float = 15) -> None:
        host = connect(spec, accept_new=accept_new)
        hosts.append(host)
        method = host.stream if request.param == "control" else host.bulk
        with method(TRUE, deadline=Deadline(connect=seconds)) as stream:
            assert stream.finish().exit == 0

    yield reach
    for host in hosts:
        host.close()
