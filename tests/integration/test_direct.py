"""fetch beside SSH: only its own client is served, nobody disturbs it, and without it everything comes over ssh."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from hsops.agent import direct
from hsops.core.errors import UnreachableError
from hsops.core.events import Event
from hsops.core.inventory import HostSpec
from hsops.fetch import line
from hsops.fetch.line import WORTH, ways
from hsops.remote import direct as remote_direct
from hsops.remote.agent import Agent
from hsops.remote.connect import connect
from hsops.remote.direct import Identity, NoDirectWayError, opened
from tests.dump_maker import make_big
from tests.fetching import Place, envelope, place, received, wait_for
from tests.hosts import Server, wait_gone

MIB = 1 << 20


@pytest.fixture
def agent(server: Server) -> Iterator[Agent]:
    """On the session's host."""
    host = connect(server.spec)
    with closing(host):
        yield Agent(host, python=sys.executable, state_dir=server.spec.state_dir)


@pytest.fixture
def here(server: Server, tmp_path: Path) -> Place:
    """24 MiB: more than a way beside SSH is looked for."""
    return place(server.spec, tmp_path, *[8 * MIB] * 3)


def listeners(state: str) -> list[psutil.Process]:
    """Agents on the host that serve beside SSH."""
    named = psutil.process_iter(["cmdline"])
    return [p for p in named if p.info["cmdline"] and p.info["cmdline"][-1] == "dumps-direct"
            and state in " ".join(p.info["cmdline"])]  # fmt: skip


def test_dumps_come_beside_ssh_and_the_port_closes_after_them(here: Place, server: Server) -> None:
    """One line says which way; the result too."""
    process = here.start_fetch("--channel", "direct")
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    events = [json.loads(line) for line in out.splitlines()]

    (told,) = [e["message"] for e in events if "beside SSH" in str(e.get("message", ""))]
    address, port = re.search(r"from (\S+):(\d+)", told).groups()  # type: ignore[union-attr]
    data = events[-1]["data"]
    assert (data["channel"], data["samples"], data["lost_streams"]) == ("direct", 3, 0)
    assert here.verify()["data"]["samples"] == 3
    wait_for(lambda: not listeners(server.spec.state_dir), "the end of the agent that listened")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, int(port)), 5)


@pytest.mark.parametrize("channel", ["ssh", "direct"])
def test_both_ways_continue_where_the_other_was_cut(channel: str, here: Place) -> None:
    """A part file is the same whichever way it came."""
    other = "direct" if channel == "ssh" else "ssh"
    process = here.start_fetch("--channel", other, "--streams", "1")
    wait_for(lambda: received(here) > MIB or process.poll() is not None, "the first bytes")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    here.assert_nothing_torn()
    missing = here.missing()

    data = here.fetch("--channel", channel)["data"]

    assert data["bytes_sent"] == missing
    assert data["channel"] in (channel, "")  # nothing may have been left to come
    here.verify()


def test_a_few_files_are_not_worth_a_look(server: Server, tmp_path: Path) -> None:
    """A firewall would cost two seconds of every small fetch."""
    assert place(server.spec, tmp_path, 1000).fetch()["data"]["channel"] == "ssh"


@pytest.mark.parametrize(
    "way, said", [("auto", "would be faster, but: the agent was not started by sshd"), ("direct", "")]
)
def test_where_there_is_no_such_way(way: str, said: str, server: Server, tmp_path: Path) -> None:
    """auto says why and takes ssh; direct says why and exits 5."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nunset SSH_CONNECTION\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    here = place(server.spec.model_copy(update={"python": str(python)}), tmp_path, 20 * MIB)

    process = here.start("fetch", "--to", str(here.to), "--channel", way)
    out, err = process.communicate(timeout=100)

    assert process.returncode == {"auto": 0, "direct": 5}[way], err
    assert said in err + out
    assert (here.to / "s0.safetensors").exists() == (way == "auto")


def test_this_machine_has_no_way_beside_ssh(tmp_path: Path) -> None:
    """A pipe is what it has; who asks for something else is told."""
    here = place(HostSpec(name="here", ssh="local", python=sys.executable), tmp_path, 20 * MIB)

    (error,) = here.fetch("--channel", "direct", expect=5)["errors"]

    assert "it is this machine" in error["message"] and "--channel auto" in error["fix"]
    assert here.fetch()["data"]["channel"] == "ssh"


def stopped_in_the_middle(here: Place, *words: str) -> subprocess.Popen[str]:
    """A fetch that stands still with some of its bytes here; again, where it was done before we came to stop it."""
    for _ in range(5):
        process = here.start_fetch(*words)
        wait_for(lambda: received(here) > MIB, "the first bytes")
        process.send_signal(signal.SIGSTOP)
        if len(list(here.to.glob("*.safetensors"))) < len(list(here.source.glob("*.safetensors"))) - 2:
            return process
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=60)
        shutil.rmtree(here.to)
    raise AssertionError("every fetch was done before it was stopped")


def test_the_listening_agent_dies_and_the_rest_comes_over_ssh(here: Place, server: Server) -> None:
    """Nothing is lost and nothing is sent twice."""
    for number in range(3, 40):
        make_big(here.source, f"s{number}", 8 * MIB)
    process = stopped_in_the_middle(here, "--streams", "2")
    for listener in listeners(server.spec.state_dir):
        listener.kill()
    process.send_signal(signal.SIGCONT)

    data = envelope(process, 0)["data"]

    assert (data["samples"], data["channel"]) == (40, "ssh")
    here.verify()


def test_a_killed_client_leaves_no_open_port(here: Place, server: Server) -> None:
    """The agent that listens goes with the SSH connection."""
    for number in range(3, 40):
        make_big(here.source, f"s{number}", 8 * MIB)
    process = stopped_in_the_middle(here, "--channel", "direct")
    running = listeners(server.spec.state_dir)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)

    assert running and all(wait_gone(p.pid) for p in running)


class Stranger:
    """Somebody who found the port."""

    def __init__(self, where: tuple[str, int]) -> None:
        self.where = where

    def plain(self) -> bytes:
        """What an HTTP client gets."""
        with socket.create_connection(self.where, 5) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return self._all(sock)

    def tls(self, identity: Path | None = None) -> bytes:
        """What a TLS client gets, without a certificate or with one of its own."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if identity:
            context.load_cert_chain(identity)
        try:
            with socket.create_connection(self.where, 5) as sock, context.wrap_socket(sock) as known:
                shown = known.getpeercert(binary_form=True) or b""
                known.sendall(b'{"files":[["s0",0,1]]}\n')
                return shown + self._all(known)
        except OSError:
            return b""

    @staticmethod
    def _all(sock: socket.socket) -> bytes:
        sock.settimeout(15)
        got = b""
        try:
            while more := sock.recv(1000):
                got += more
        except ConnectionError:
            pass
        return got


@contextmanager
def door(agent: Agent, folder: Path) -> Iterator[tuple[Any, tuple[str, int]]]:
    """An open door, and its place."""
    with opened(agent, str(folder)) as found:
        yield found, (found.place.addresses[0], found.place.port)


def test_a_stranger_gets_nothing_and_disturbs_nothing(agent: Agent, here: Place, tmp_path: Path) -> None:
    """Not without TLS, without a certificate or with another one; nor does one who keeps connections open."""
    identity = tmp_path / "identity.pem"
    identity.write_text(Identity.make().both)
    with door(agent, here.source) as (found, where):
        stranger = Stranger(where)
        got = [stranger.plain(), stranger.tls(), stranger.tls(identity)]
        idle = [socket.create_connection(where, 5) for _ in range(2 * direct.STRANGERS)]
        with closing(found.connect(30)) as connection:
            answer = bytes(connection.read(12))
        for sock in idle:
            sock.close()

    assert all(not any(word in text for word in (b"hsops", b"safetensors")) for text in got)
    assert answer.startswith(b"hsops-frames")


def test_another_machine_is_shown_nothing(agent: Agent, here: Place) -> None:
    """Not even a handshake: only the address that SSH came from is let in."""
    with door(agent, here.source) as (_, where), socket.create_connection(where, 5, ("127.0.0.2", 0)) as sock:
        sock.settimeout(15)
        try:
            got = sock.recv(1)
        except ConnectionResetError:
            got = b""

    assert got == b""


def test_a_client_whose_certificate_is_refused_takes_ssh(
    agent: Agent, here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host whose clock is a year off: in TLS 1.3 the client learns it only after its own handshake."""
    monkeypatch.setattr(remote_direct, "_VALID", dt.timedelta(seconds=0))
    told = list[Event]()

    with ways(agent, str(here.source), "auto", WORTH, told.append) as found:
        name = found.name

    (note,) = told
    assert name == "ssh" and "but: 127.0.0.1 port" in str(note)


def test_auto_takes_the_way_beside_ssh(agent: Agent, here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it can be had in time, and this machine has few cores."""
    monkeypatch.setattr(line, "FIRST_S", 30.0)
    monkeypatch.setattr(line, "MANY", 1 << 20)

    with ways(agent, str(here.source), "auto", WORTH, lambda _: None) as found:
        assert found.name == "direct"
        found.shut(UnreachableError("cut"), lambda _: None)
        assert found.name == "ssh"


@pytest.mark.parametrize("far, name", [(0.0, "ssh"), (0.1, "direct")])
def test_auto_takes_ssh_between_many_cores(
    agent: Agent, here: Place, monkeypatch: pytest.MonkeyPatch, far: float, name: str
) -> None:
    """Its processes bring more there than one process's TLS; not over a long line."""
    monkeypatch.setattr(line, "FIRST_S", 30.0)
    monkeypatch.setattr(line, "MANY", 1)
    monkeypatch.setattr(type(agent.host), "round_trip", property(lambda _: far))
    told = list[Event]()

    with ways(agent, str(here.source), "auto", WORTH, told.append) as found:
        assert found.name == name

    assert ("cores at both ends" in str(told)) == (name == "ssh")


def test_only_cores_that_may_be_used_count(agent: Agent, here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may leave few of many, at either end."""
    mine = os.sched_getaffinity(0)
    with opened(agent, str(here.source)) as direct:
        assert direct.place.cores == len(mine)

    monkeypatch.setattr(line, "FIRST_S", 30.0)
    monkeypatch.setattr(line, "MANY", 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(type(agent.host), "round_trip", property(lambda _: 0.0))
    with ways(agent, str(here.source), "auto", WORTH, lambda _: None) as found:
        assert found.name == "direct"


def test_an_impostor_is_told_from_the_agent(agent: Agent, here: Place) -> None:
    """Somebody else who listens at the address gets no request: his certificate is not the agent's."""
    with (
        door(agent, here.source) as (found, _),
        door(agent, here.source) as (other, _),
        pytest.raises(NoDirectWayError, match="certificate"),
    ):
        type(found)(found.host, other.place, found._context, found._certificate).connect()


def test_a_port_that_nobody_answers_at_costs_two_seconds_at_most(agent: Agent, here: Place) -> None:
    """A full backlog drops packets as a firewall does."""
    with socket.socket() as full, door(agent, here.source) as (found, _):
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        place_ = type(found.place)(("127.0.0.1",), full.getsockname()[1])
        blocked = type(found)(found.host, place_, found._context, found._certificate)

        with pytest.raises(NoDirectWayError, match="no answer"):
            blocked.connect(0.5)
        for sock in waiting:
            sock.close()


def test_a_request_that_makes_no_sense_ends_the_connection_alone(agent: Agent, here: Place) -> None:
    """Names that lead elsewhere are refused at this end too; the door stays open."""
    with door(agent, here.source) as (found, _):
        for nonsense in (b'{"files":[["../../etc/passwd",0,1]]}\n', b"[]\n", b"x" * (2 << 20) + b"\n"):
            with closing(found.connect(30)) as connection, suppress(UnreachableError):  # closed while we still talk
                connection.send(nonsense)
                assert bytes(connection.read(15)) == b"hsops-frames 1\n"
                assert not bytes(connection.read(1))
        with closing(found.connect(30)) as connection:
            assert bytes(connection.read(15)) == b"hsops-frames 1\n"
