"""The connection dies, or the client does: it is noticed, nothing is left on the host, and the next call works."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

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
    """Its host, with a quick pulse that a busy machine still answers in time."""
    host = SshHost(server.spec, pulse=Pulse(every=0.3, lost_after=5.0))
    yield host
    host.close()


def connections(server: Server) -> list[psutil.Process]:
    """sshd's processes that hold a connection."""
    running = sshd.status(server.folder)
    assert running
    found = []
    for process in psutil.Process(running.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # sshd's helpers come and go
            if process.name().startswith("sshd"):
                found.append(process)
    return found


def cut(server: Server) -> None:
    """Kill the processes that hold a connection; the end of one may be another's."""
    for process in connections(server):
        with suppress(psutil.NoSuchProcess):
            process.kill()


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """The processes that hold a connection stand still."""
    stopped = connections(server)
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()


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
        cut(server)
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
        with frozen(server):
            began = time.monotonic()
            with pytest.raises(UnreachableError, match="lost"):
                next(pieces)

    assert time.monotonic() - began < 60


def test_a_frozen_host_ends_a_new_call_at_its_connect_deadline(server: Server) -> None:
    """Opening a channel and starting a command have deadlines of their own, whatever the pulse."""
    host = SshHost(server.spec)
    host.run(Command(("true",)))
    with frozen(server), pytest.raises(UnreachableError, match=r"within 1 s"):
        host.run(Command(("true",)), deadline=Deadline(connect=1))
    host.close()


def test_a_healthy_link_outlives_many_pulses(server: Server) -> None:
    """A command that says nothing meanwhile: each pulse is answered, and the connection stays."""
    host = SshHost(server.spec, pulse=Pulse(every=0.1, lost_after=30.0))
    with host.stream(sh("echo; read -r _; echo done"), talk=True) as stream:
        pieces = iter(stream)
        assert next(pieces) == b"\n"
        link, answers = host._link, set[float]()
        assert link
        until = time.monotonic() + 60
        while len(answers) < 20:
            assert time.monotonic() < until
            answers.add(link._answered)
            time.sleep(0.02)
        stream.say(b"\n", Deadline())
        assert next(pieces) == b"done\n"

    assert host._link is link
    host.close()


def test_the_tunnel_heals(server: Server, host: SshHost) -> None:
    """A client of a dead connection is cut off; the next one gets a new connection."""
    with host.tunnel(server.port) as port:
        cut(server)
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
