"""A port here that leads to one on the host."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest

from hsops.core.inventory import HostSpec
from hsops.remote.agent import Agent
from hsops.remote.connect import connect
from tests.hosts import closed_port

BIG = 3 << 20


class Echo(BaseHTTPRequestHandler):
    """Answers a POST with its body, a GET with 3 MiB."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(bytes(BIG))

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silence."""


class Server(ThreadingHTTPServer):
    """Takes 64 connections at once."""

    request_queue_size = 64
    daemon_threads = True


@pytest.fixture(scope="module")
def http_port() -> Iterator[int]:
    """A small HTTP server on this machine, which is the host as well."""
    server = Server(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module", params=["local", "ssh", "local-via", "ssh-via"])
def host(request: pytest.FixtureRequest, sshd_host: HostSpec) -> Iterator[Agent]:
    """The host, here and over SSH; behind a prefix the tunnel is the agent's relay."""
    way, _, via = request.param.partition("-")
    changed = {"ssh": sshd_host.ssh if way == "ssh" else "local", "via": ("env",) if via else ()}
    with agent_on(sshd_host.model_copy(update=changed)) as agent:
        yield agent


@contextmanager
def agent_on(spec: HostSpec) -> Iterator[Agent]:
    """Its agent; the connection is closed."""
    host = connect(spec)
    yield Agent(host, python=spec.python, state_dir=spec.state_dir)
    host.close()


def test_http_through_the_tunnel(host: Agent, http_port: int) -> None:
    """Both directions, more than a window's worth."""
    with host.tunnel(http_port) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        assert client.get("/").content == bytes(BIG)
        assert client.post("/", content=b"y" * BIG).content == b"y" * BIG


def test_many_connections_at_once(host: Agent, http_port: int) -> None:
    """Thirty-two clients, each with a connection of its own."""
    with host.tunnel(http_port) as port, ThreadPoolExecutor(32) as pool:
        bodies = [f"{i}".encode() * 1000 for i in range(32)]
        answers = pool.map(lambda b: httpx.post(f"http://127.0.0.1:{port}", content=b, timeout=60).content, bodies)

        assert list(answers) == bodies


def test_half_close_is_passed_on(host: Agent) -> None:
    """A peer that waits for the end of the request still answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                got = b""
                while data := peer.recv(1 << 16):
                    got += data
                peer.sendall(got[::-1])

        thread = threading.Thread(target=answer)
        thread.start()
        with host.tunnel(server.getsockname()[1]) as port, socket.create_connection(("127.0.0.1", port), 30) as client:
            client.sendall(b"abc")
            client.shutdown(socket.SHUT_WR)

            assert client.makefile("rb").read() == b"cba"
        thread.join()


def test_a_refused_port_is_a_refused_or_closed_connection(host: Agent, capfd: pytest.CaptureFixture[str]) -> None:
    """What a server that is still starting looks like; no thread complains on stderr."""
    with (
        closed_port() as closed,
        host.tunnel(closed) as port,
        pytest.raises(httpx.TransportError),
    ):
        httpx.get(f"http://127.0.0.1:{port}", timeout=30)

    assert capfd.readouterr().err == ""


def test_the_tunnel_serves_once_the_port_opens(host: Agent) -> None:
    """The same tunnel, refused before, works afterwards."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo, bind_and_activate=False)
    server.server_bind()  # the port is taken, and refuses whoever comes until the server listens
    with host.tunnel(server.server_port) as port:
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}", timeout=30)
        server.server_activate()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert httpx.get(f"http://127.0.0.1:{port}", timeout=30).status_code == 200
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.mark.parametrize("via", [(), ("env",)])
def test_closing_ends_connections_and_the_port(via: tuple[str, ...], sshd_host: HostSpec) -> None:
    """Nothing listens afterwards, and a client that waits is told."""
    changed = sshd_host.model_copy(update={"via": via})
    with socket.create_server(("127.0.0.1", 0)) as silent, agent_on(changed) as agent:
        with agent.tunnel(silent.getsockname()[1]) as port:
            client = socket.create_connection(("127.0.0.1", port), 30)
            peer, _ = silent.accept()

        assert client.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 30)
        client.close()
        peer.close()


def relays() -> list[psutil.Process]:
    """The agents that relay."""
    return [
        one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] and one.info["cmdline"][-1] == "relay"
    ]


@pytest.mark.parametrize("ssh", ["local", ""])
def test_a_relay_that_dies_breaks_its_connections_and_the_next_one_works(
    ssh: str, sshd_host: HostSpec, tmp_path: Path
) -> None:
    """Whoever waits is told, and the same port leads there again."""
    spec = sshd_host.model_copy(
        update={"via": ("env",), "ssh": ssh or sshd_host.ssh, "state_dir": str(tmp_path / "state")}
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as cut,
        agent_on(spec) as agent,
        agent.tunnel(cut.getsockname()[1]) as port,
    ):
        (relay,) = [one for one in relays() if spec.state_dir in " ".join(one.info["cmdline"])]
        client = socket.create_connection(("127.0.0.1", port), 30)
        peer, _ = cut.accept()
        peer.sendall(b"half")
        assert client.recv(4) == b"half"
        relay.kill()
        with client:
            assert client.recv(1) == b""
        peer.close()
        with socket.create_connection(("127.0.0.1", port), 30) as again:
            peer, _ = cut.accept()
            peer.sendall(b"whole")
            peer.close()
            assert again.makefile("rb").read() == b"whole"


def test_a_server_that_does_not_read_holds_up_no_other(sshd_host: HostSpec) -> None:
    """More than any buffer of the system is on its way to it."""
    spec = sshd_host.model_copy(update={"via": ("env",)})
    with agent_on(spec) as agent, socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        with agent.tunnel(port) as here:
            client = socket.create_connection(("127.0.0.1", here), 30)
            peer, _ = deaf.accept()
            client.settimeout(30)
            client.sendall(bytes(24 << 20))
            with socket.create_connection(("127.0.0.1", here), 30) as other:
                second, _ = deaf.accept()
                second.sendall(b"on time")
                assert other.recv(7) == b"on time"
                second.close()
            client.close()
            peer.close()
