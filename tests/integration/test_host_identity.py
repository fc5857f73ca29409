"""Who are we, is anybody there, and which way: each failure has its class and its remedy."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hsops.core.command import Command
from hsops.core.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineError,
    HostKeyError,
    HsopsError,
    RemoteError,
    UnreachableError,
)
from hsops.core.inventory import HostSpec
from hsops.remote.connect import connect
from tests.hosts import Change, Server, ServerFactory, closed_port, keygen

TRUE = Command(("true",))


def test_a_refused_key_lists_what_was_tried(change: Change, reach: Callable[..., None], tmp_path: Path) -> None:
    """With its fingerprint and file."""
    keygen(tmp_path / "stranger")

    with pytest.raises(AuthenticationError):
        reach(change(IdentityFile=str(tmp_path / "stranger")))


def test_the_error_for_refused_keys_is_precise(change: Change, tmp_path: Path) -> None:
    """Which key, and nothing else, was offered."""
    print_ = keygen(tmp_path / "stranger")

    with pytest.raises(AuthenticationError) as caught:
        connect(change(IdentityFile=str(tmp_path / "stranger"))).run(TRUE)

    assert caught.value.why == f"tried: {print_} {tmp_path}/stranger"


def test_a_key_with_a_passphrase_is_left_to_the_agent(change: Change, tmp_path: Path) -> None:
    """Nobody is asked; the remedy is ssh-add."""
    keygen(tmp_path / "locked", passphrase="secret phrase")

    with pytest.raises(AuthenticationError) as caught:
        connect(change(IdentityFile=str(tmp_path / "locked"))).run(TRUE)

    assert caught.value.fix == f"ssh-add {tmp_path}/locked"


def test_a_key_that_only_the_agent_can_use_works(
    server: Server, change: Change, reach: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``IdentitiesOnly`` with the public half on disk and the private half in the agent."""
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        add = ["ssh-add", "-q", str(server.folder / "client_key")]
        while subprocess.run(add, capture_output=True, timeout=20, check=False).returncode and time.monotonic() < until:
            time.sleep(0.05)
        (tmp_path / "id.pub").write_text((server.folder / "client_key.pub").read_text())

        reach(change(IdentityFile=str(tmp_path / "id")))
    finally:
        agent.kill()
        agent.wait()


@pytest.mark.parametrize("seconds", [1.0])
def test_a_host_that_never_speaks_ends_at_the_connect_deadline(
    change: Change, reach: Callable[..., None], seconds: float
) -> None:
    """A listener that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        spec = change(Port=str(silent.getsockname()[1]))
        began = time.monotonic()
        with pytest.raises(DeadlineError):
            reach(spec, seconds=seconds)

    assert time.monotonic() - began < seconds + 30


def test_a_closed_port_is_unreachable(change: Change, reach: Callable[..., None]) -> None:
    """Nothing listens."""
    with closed_port() as port, pytest.raises(UnreachableError, match=r"[Cc]onnection refused"):
        reach(change(Port=str(port)))


def test_a_name_that_does_not_resolve_is_unreachable(change: Change, reach: Callable[..., None]) -> None:
    """``.invalid`` never does (RFC 2606)."""
    with pytest.raises(UnreachableError):
        reach(change(HostName="no-such-host.invalid"), seconds=20)


def test_something_that_is_no_sshd_is_unreachable(change: Change, reach: Callable[..., None]) -> None:
    """A port where another protocol is spoken."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def speak() -> None:
            with other.accept()[0] as peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(UnreachableError):
            reach(change(Port=str(other.getsockname()[1])))
        thread.join()


def test_user_host_and_port_without_an_alias(server: Server, change: Change, reach: Callable[..., None]) -> None:
    """``ssh: user@127.0.0.1:port``; the file gives the rest."""
    spec = change()
    path = Path(str(spec.ssh_config))
    user = path.read_text().split("User ")[1].split()[0]
    path.write_text(path.read_text().replace(f"Host {spec.ssh}", "Host *").replace(f"Port {server.port}", "Port 1"))

    reach(spec.model_copy(update={"ssh": f"{user}@127.0.0.1:{server.port}"}))


def test_an_included_file_counts(change: Change, reach: Callable[..., None], tmp_path: Path) -> None:
    """OpenSSH resolves the configuration, so all of its features work."""
    spec = change()
    (tmp_path / "outer").write_text(f"Include {spec.ssh_config}\n")

    reach(spec.model_copy(update={"ssh_config": str(tmp_path / "outer")}))


@pytest.mark.parametrize("text", ["Bogus yes\n", None])
def test_a_broken_ssh_config_is_a_fault_of_the_configuration(
    change: Change, reach: Callable[..., None], tmp_path: Path, text: str | None
) -> None:
    """A misspelt keyword, a missing file."""
    if text:
        (tmp_path / "broken").write_text(text)

    with pytest.raises(ConfigError, match="broken"):
        reach(change().model_copy(update={"ssh_config": str(tmp_path / "broken")}))


def two_hops(server: Server, inner: Server, folder: Path, way: str) -> HostSpec:
    """``inner`` through ``server``, for which ``way`` is the option."""
    outer_text = (server.folder / "ssh_config").read_text()
    inner_text = (inner.folder / "ssh_config").read_text()
    (folder / "jump").write_text(f"{inner_text}  {way}\n{outer_text}")
    return inner.spec.model_copy(update={"ssh_config": str(folder / "jump")})


@pytest.fixture(scope="module")
def inner(new_server: ServerFactory) -> Server:
    """The machine behind another."""
    return new_server("inner")


@pytest.mark.parametrize(
    "way", ["ProxyJump {alias}", "ProxyCommand ssh -F {folder}/ssh_config -W %h:%p {alias}"], ids=["jump", "command"]
)
def test_a_host_behind_another(
    server: Server, inner: Server, reach: Callable[..., None], tmp_path: Path, way: str
) -> None:
    """ProxyJump and ProxyCommand."""
    reach(two_hops(server, inner, tmp_path, way.format(alias=server.spec.ssh, folder=server.folder)))


def test_the_jump_host_is_checked_as_well(
    server: Server, inner: Server, reach: Callable[..., None], tmp_path: Path
) -> None:
    """An unknown key on the way is an unknown key."""
    spec = two_hops(server, inner, tmp_path, f"ProxyJump {server.spec.ssh}")
    path = Path(str(spec.ssh_config))
    path.write_text(path.read_text().replace(str(server.folder / "known_hosts"), str(tmp_path / "empty")))

    with pytest.raises(HostKeyError):
        reach(spec)


def test_what_the_start_up_files_print_is_not_output(new_server: ServerFactory, reach: Callable[..., None]) -> None:
    """A ``~/.bashrc`` that greets, which breaks scp and rsync."""
    greeting = 'ForceCommand echo "Welcome!"; printf "no newline"; eval "$SSH_ORIGINAL_COMMAND"'
    spec = new_server("noisy", extra=(greeting,)).spec
    reach(spec)
    host = connect(spec)

    assert host.run(Command(("echo", "mine"))).stdout == b"mine\n"
    with host.bulk(Command(("echo", "mine"))) as stream:
        assert b"".join(stream) == b"mine\n"
    host.close()


def test_an_account_without_a_shell_is_told_in_its_words(new_server: ServerFactory, reach: Callable[..., None]) -> None:
    """``nologin`` and the like never start our command."""
    spec = new_server("nologin", extra=('ForceCommand echo "This account is currently not available."; exit 1',)).spec

    with pytest.raises(RemoteError, match="This account is currently not available"):
        reach(spec)


def test_a_shell_that_is_killed_before_it_begins_is_a_lost_command(new_server: ServerFactory) -> None:
    """By a signal, on either way: the host is to be asked again, and no shell is to blame."""
    host = connect(new_server("killed", extra=("ForceCommand kill -9 $$",)).spec)

    with pytest.raises(UnreachableError, match="killed before it ran the command"):
        host.run(TRUE)
    with pytest.raises(UnreachableError), host.bulk(TRUE) as stream:
        stream.finish()
    host.close()


def test_a_client_that_is_killed_before_the_command_begins_is_a_lost_connection(new_server: ServerFactory) -> None:
    """The host's shell did nothing wrong; a fetch tries such a stream again."""
    host = connect(new_server("slow", extra=("ForceCommand sleep 600",)).spec)

    with host.bulk(TRUE) as stream:
        (child,) = [p for p in psutil.Process().children() if p.name() == "ssh"]
        child.kill()
        with pytest.raises(UnreachableError, match="ssh was ended by SIGKILL before the command began"):
            stream.finish()
    host.close()


def test_without_openssh_the_error_names_the_package(sshd_host: HostSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client itself is what resolves and carries."""
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(HsopsError) as caught:
        connect(sshd_host).run(TRUE)

    assert caught.value.fix == "apt-get install openssh-client"


def test_a_host_with_no_session_left_says_so(new_server: ServerFactory) -> None:
    """``MaxSessions`` of its sshd; the connection itself stays good."""
    host = connect(new_server("narrow", extra=("MaxSessions 1",)).spec)
    with host.stream(Command(("sleep", "600"))), pytest.raises(UnreachableError, match="refused another session"):
        host.run(TRUE)

    assert host.run(TRUE).exit == 0
    host.close()
