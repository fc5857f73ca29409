"""``logs -f`` and ``launch --wait-healthy`` while a client, sshd or the network goes: no byte lost or doubled."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hsops.core.runs import Run
from hsops.lab import sshd
from hsops.remote import runs
from tests.cable import Cable, cable, reach_through, why_not
from tests.clients import Client, begin, until_lost
from tests.hosts import Server
from tests.practice_host import PracticeHost, practice_host

CUT_S = float(os.environ.get("HSOPS_CUT_S", "0"))  # least length of a cut; 0: until the client has noticed
COUNTING = Path(__file__).parents[1] / "victims/counting.py"
pytestmark = pytest.mark.timeout(400 + 6 * int(CUT_S))

INVENTORY = """\
hosts:
  box: {{ ssh: box, ssh_config: {config}, python: {python}, state_dir: {state}, keepalive: 0.3 }}
servers:
  counting: {{ host: box, model: hub/none, port: auto }}
default: counting
"""


@dataclass
class Box:
    """A host behind an sshd of its own, and a server on it that counts."""

    host: PracticeHost
    server: Server
    inside: tuple[str, ...] = ()
    clients: int = 0

    def begin(self, *words: str) -> Client:
        """Start hsops."""
        self.clients += 1
        return begin(self.host.folder / f"client-{self.clients}", self.host.inventory, *words, inside=self.inside)

    def launch(self) -> tuple[Run, Client, Client]:
        """The server, counting, with one client that waits for its health and one that follows its log."""
        waiter = self.begin("launch", "--wait-healthy")
        waiter.until(lambda: "started" in waiter.errors)
        (run,) = runs.list_runs(self.host.agent())
        follower = self.begin("logs", "-f")
        follower.until_grown()
        return run, waiter, follower

    def tell(self, run: Run, word: str) -> None:
        """``healthy`` or ``finish``."""
        (Path(run.directory) / word).touch()


@pytest.fixture
def box(tmp_path: Path, new_server: Callable[..., Server]) -> Iterator[Box]:
    """The host, reached over 127.0.0.1."""
    with _box(tmp_path, new_server("box")) as found:
        yield found


@pytest.fixture
def plugged(tmp_path: Path, new_server: Callable[..., Server]) -> Iterator[tuple[Box, Cable]]:
    """The host, reached through a cable."""
    if reason := why_not():
        pytest.skip(reason)
    with cable() as made:
        server = new_server("box", extra=(f"ListenAddress {made.address}",))
        reach_through(made, server.folder)
        with _box(tmp_path, server) as found:
            found.inside = made.inside
            yield found, made


@contextlib.contextmanager
def _box(folder: Path, server: Server) -> Iterator[Box]:
    host = practice_host(folder)
    (host.site / "sglang/launch_server.py").write_text(COUNTING.read_text())
    config = server.folder / "ssh_config"
    host.inventory.write_text(INVENTORY.format(config=config, python=host.python, state=host.state))
    made = Box(host, server)
    yield made
    agent = host.agent()
    for run in runs.list_runs(agent):
        assert runs.stop_run(agent, run.id, grace=0.0).left == ()


def same_bytes(run: Run, *clients: Client) -> None:
    """Each client has the log as the server wrote it, and the server has counted on all the while."""
    log = Path(run.log).read_bytes()
    lines = log.splitlines()
    assert lines[-1] == b"%d lines" % (len(lines) - 1)
    assert [line.split()[1] for line in lines[:-1]] == [b"%09d" % n for n in range(len(lines) - 1)]
    for client in clients:
        assert hashlib.sha256(client.out.read_bytes()).digest() == hashlib.sha256(log).digest()


def test_a_killed_client_and_an_sshd_that_is_restarted(box: Box) -> None:
    """``kill -9`` of one client, then sshd goes and comes: the others say so and go on at the same byte."""
    run, waiter, follower = box.launch()
    killed = box.begin("logs", "-f")
    killed.until_grown()

    killed.child.send_signal(signal.SIGKILL)
    killed.child.wait(10)
    sshd.stop(box.server.folder)
    until_lost(waiter, follower)
    sshd.start(box.server.folder, alias="box")
    follower.until_grown()
    again = box.begin("logs", "-f")
    again.until_grown()
    box.tell(run, "healthy")
    waited = waiter.end()
    box.tell(run, "finish")

    assert (waited, follower.end(), again.end()) == (0, 0, 0), waiter.errors + follower.errors
    assert "from the same byte on" in follower.errors
    same_bytes(run, follower, again)
    assert Path(run.log).read_bytes().startswith(killed.out.read_bytes())


def test_a_network_that_goes_away(plugged: tuple[Box, Cable]) -> None:
    """The cable is pulled during ``logs -f`` and ``launch --wait-healthy``; HSOPS_CUT_S makes it long."""
    box, wire = plugged
    run, waiter, follower = box.launch()

    wire.pull()
    mended = time.monotonic() + CUT_S
    until_lost(waiter, follower)
    size = follower.out.stat().st_size
    follower.until(lambda: time.monotonic() >= mended and Path(run.log).stat().st_size > size)
    assert follower.out.stat().st_size == size
    wire.plug()
    follower.until_grown()
    box.tell(run, "healthy")
    waited = waiter.end()
    box.tell(run, "finish")

    assert (waited, follower.end()) == (0, 0), waiter.errors + follower.errors
    same_bytes(run, follower)
