"""The connection dies, or the client does: it is noticed, nothing is left on the host, and the next call works."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from hsops.core.command import Command
from hsops.core.deadline import Deadline
from hsops.core.errors import UnreachableError
from hsops.lab import sshd
from hsops.remote.pulse import Pulse
from hsops.remote.ssh import SshHost
from tests.hosts import Server, ServerFactory, run_dir, sh, wait_gone

CHATTER = sh("echo $$; while echo x; do sleep 0.1; done")
SILENCE = sh("echo $$; exec sleep 600")


@pytest.fixture
def server(new_server: ServerFactory) -> Server:
    """A server of the test's own, to be mistreated."""
    return new_server("mortal")


@pytest.fixture
def host(server: Server) -> Iterator[SshHost]:
    """Its host, with a quick pulse."""
    host = SshHost(server.spec, pulse=Pulse(every=0.3, lost_after=1.5))
    yield host
    host.close()


def connections(server: Server) -> list[psutil.Process]:
    """sshd's processes that hold a connection."""
    running = sshd.status(server.folder)
    assert running
    return [p for p in psutil.Process(running.pid).children(recursive=True) if p.name().startswith("sshd")]


@pytest.mark.parametrize("command", [CHATTER, SILENCE], ids=["chatter", "silence"])
@pytest.mark.parametrize("way", ["stream", "bulk"])
def test_a_killed_connection_is_an_error_and_the_next_call_works(
    server: Server, host: SshHost, command: Command, way: str
) -> None:
    """A stream never just ends short; the host ends the command."""
    method: Callable[..., object] = getattr(host, way)
    with method(command, deadline=Deadline(idle=60, total=None)) as stream:  # type: ignore[attr-defined]
        pieces = iter(stream)
        pid = int(next(pieces).split()[0])
        for process in connections(server):
            process.kill()
        with pytest.raises(UnreachableError):
            for _ in pieces:
                pass

    assert wait_gone(pid)
    assert host.run(Command(("echo", "again"))).stdout == b"again\n"


def test_a_connection_that_died_unnoticed_is_replaced(server: Server, host: SshHost) -> None:
    """A restart of sshd between two calls costs nothing."""
    assert host.run(Command(("true",))).exit == 0
    sshd.stop(server.folder)
    sshd.start(server.folder, alias=server.spec.ssh)

    assert host.run(Command(("true",))).exit == 0


def test_a_host_that_falls_silent_is_noticed(server: Server, host: SshHost) -> None:
    """Its kernel still takes our packets, but nobody answers: every stream ends, long before its own deadline."""
    with host.stream(SILENCE, deadline=Deadline(idle=300, total=None)) as stream:
        pieces = iter(stream)
        next(pieces)
        frozen = connections(server)
        for process in frozen:
            process.suspend()
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="lost"):
            next(pieces)

    assert time.monotonic() - began < 30
    for process in frozen:
        process.resume()


def test_a_frozen_host_ends_a_new_call_at_its_connect_deadline(server: Server) -> None:
    """Opening a channel and starting a command have deadlines of their own, whatever the pulse."""
    host = SshHost(server.spec)
    host.run(Command(("true",)))
    frozen = connections(server)
    for process in frozen:
        process.suspend()
    began = time.monotonic()
    with pytest.raises(UnreachableError):
        host.run(Command(("true",)), deadline=Deadline(connect=1))

    assert time.monotonic() - began < 15
    for process in frozen:
        process.resume()
    host.close()


def test_a_healthy_link_outlives_many_pulses(host: SshHost) -> None:
    """An idle connection outlives many pulses."""
    host.run(Command(("true",)))
    link = host._link
    with host.stream(sh("sleep 3; echo done")) as stream:
        assert b"".join(stream) == b"done\n"

    assert host._link is link


def test_the_tunnel_heals(server: Server, host: SshHost) -> None:
    """A client of a dead connection is cut off; the next one gets a new connection."""
    with host.tunnel(server.port) as port:
        for process in connections(server):
            process.kill()
        until = time.monotonic() + 30
        greeting = b""
        while not greeting and time.monotonic() < until:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 30) as client:
                greeting = client.recv(4)

    assert greeting == b"SSH-"


CLIENT = """
import sys
from hsops.core.command import Command
from hsops.core.inventory import HostSpec
from hsops.remote.connect import connect

host = connect(HostSpec.model_validate_json(sys.argv[1]))
with getattr(host, sys.argv[2])(Command(("sh", "-c", "echo $$; exec sleep 600"))) as stream:
    for piece in stream:
        print(piece.decode(), flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
@pytest.mark.parametrize("way", ["stream", "bulk", "local"])
def test_a_killed_client_leaves_nothing_running(server: Server, way: str, how: signal.Signals) -> None:
    """The host ends the command by itself, also when the client had no chance to say goodbye."""
    spec = server.spec if way != "local" else server.spec.model_copy(update={"ssh": "local"})
    argv = [sys.executable, "-c", CLIENT, spec.model_dump_json(), way.replace("local", "stream")]
    client = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=run_dir())
    assert client.stdout
    pid = int(client.stdout.readline())

    client.send_signal(how)
    client.wait(30)

    assert wait_gone(pid)
    client.stdout.close()
