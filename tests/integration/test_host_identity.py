"""Who is at the other end, who are we, and is anybody there: each failure has its class and its remedy."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hsops.core.command import Command
from hsops.core.deadline import Deadline
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
from hsops.remote.host import Host
from tests.conftest import Server, ServerFactory

TRUE = Command(("true",))
Change = Callable[..., HostSpec]


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


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "") -> str:
    """A new key pair; returns the fingerprint that OpenSSH shows."""
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)], check=True, timeout=60)
    return fingerprint(path)


def fingerprint(path: Path) -> str:
    """``SHA256:...`` of a public key file."""
    out = subprocess.run(["ssh-keygen", "-lf", f"{path}.pub"], capture_output=True, text=True, check=True, timeout=60)
    return out.stdout.split()[1]


def known(server: Server, path: Path, public: Path, prefix: str = "") -> Path:
    """A known_hosts file that says the server has the key ``public``, on line 2."""
    key = " ".join(public.read_text().split()[:2])
    path.write_text(f"# a comment\n{prefix}[127.0.0.1]:{server.port} {key}\n")
    return path


def test_an_unknown_host_key_is_refused(
    server: Server, change: Change, reach: Callable[..., None], tmp_path: Path
) -> None:
    """Nothing is stored."""
    with pytest.raises(HostKeyError):
        reach(change(UserKnownHostsFile=str(tmp_path / "known")))

    assert not (tmp_path / "known").exists()


def test_the_error_for_an_unknown_key_shows_what_to_compare(server: Server, change: Change, tmp_path: Path) -> None:
    """The fingerprint, as ssh-keygen prints it, and the option that stores the key."""
    with pytest.raises(HostKeyError) as caught:
        connect(change(UserKnownHostsFile=str(tmp_path / "known"))).run(TRUE)

    assert f"ED25519 {fingerprint(server.folder / 'host_key')}" in caught.value.message
    assert f"[127.0.0.1]:{server.port}" in caught.value.message
    assert "--accept-new" in caught.value.fix


@pytest.mark.parametrize("hashed", ["yes", "no"])
def test_accept_new_stores_the_key_for_both_doors(
    server: Server, change: Change, reach: Callable[..., None], tmp_path: Path, hashed: str
) -> None:
    """After that one time the host is known, to OpenSSH as well."""
    spec = change(UserKnownHostsFile=str(tmp_path / "new" / "known"), HashKnownHosts=hashed)
    connect(spec, accept_new=True).run(TRUE)

    reach(spec)

    text = (tmp_path / "new" / "known").read_text()
    assert text.startswith("|1|" if hashed == "yes" else f"[127.0.0.1]:{server.port} ssh-ed25519 ")
    assert text.count("\n") == 1


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_host_key_is_refused_always(
    server: Server, change: Change, reach: Callable[..., None], tmp_path: Path, accept_new: bool
) -> None:
    """Also when new keys are accepted."""
    keygen(tmp_path / "other")
    file = known(server, tmp_path / "known", tmp_path / "other.pub")

    with pytest.raises(HostKeyError):
        reach(change(UserKnownHostsFile=str(file)), accept_new=accept_new)

    assert file.read_text().count("\n") == 2


def test_the_error_for_a_changed_key_names_both_keys_and_the_line(
    server: Server, change: Change, tmp_path: Path
) -> None:
    """And the command that forgets the old one works."""
    old = keygen(tmp_path / "other")
    file = known(server, tmp_path / "known", tmp_path / "other.pub")
    spec = change(UserKnownHostsFile=str(file))

    with pytest.raises(HostKeyError) as caught:
        connect(spec).run(TRUE)

    new = fingerprint(server.folder / "host_key")
    assert f"changed (ED25519 {new}; {file} line 2 has ED25519 {old})" in caught.value.message
    remedy = caught.value.fix.removeprefix("if you know why: ").partition(",")[0]
    subprocess.run(["sh", "-c", remedy], check=True, capture_output=True, timeout=30)
    assert connect(spec, accept_new=True).run(TRUE).exit == 0


def test_a_key_of_another_type_is_no_new_host(server: Server, change: Change, tmp_path: Path) -> None:
    """Somebody in between who offers another type of key is not taken for a first contact."""
    keygen(tmp_path / "other", "ecdsa")
    file = known(server, tmp_path / "known", tmp_path / "other.pub")

    with pytest.raises(HostKeyError, match="another type"):
        connect(change(UserKnownHostsFile=str(file)), accept_new=True).run(TRUE)


def test_a_revoked_key_is_refused(server: Server, change: Change, tmp_path: Path) -> None:
    """``@revoked`` wins over a line that allows the key."""
    public = server.folder / "host_key.pub"
    file = known(server, tmp_path / "known", public, "@revoked ")
    with file.open("a") as out:
        out.write((server.folder / "known_hosts").read_text())

    with pytest.raises(HostKeyError, match="revoked"):
        connect(change(UserKnownHostsFile=str(file))).run(TRUE)


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_the_host_is_asked_for_the_key_that_is_known(
    new_server: ServerFactory, tmp_path: Path, reach: Callable[..., None], kind: str
) -> None:
    """A server with two keys of which only the less preferred one is known."""
    keygen(tmp_path / "second", kind)
    server = new_server("two-keys", extra=(f"HostKey {tmp_path}/second",))
    known(server, server.folder / "known_hosts", tmp_path / "second.pub")

    reach(server.spec)


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

    assert time.monotonic() - began < seconds + 10


def test_a_closed_port_is_unreachable(change: Change, reach: Callable[..., None]) -> None:
    """Nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    with pytest.raises(UnreachableError, match=r"[Cc]onnection refused"):
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


def test_without_openssh_the_error_names_the_package(sshd_host: HostSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client itself is what resolves and carries."""
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(HsopsError) as caught:
        connect(sshd_host).run(TRUE)

    assert caught.value.fix == "apt-get install openssh-client"
