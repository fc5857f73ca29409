"""Is the host the one we think it is? Unknown, changed and revoked keys, and how a new one is accepted."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hsops.core.command import Command
from hsops.core.errors import HostKeyError
from hsops.remote.connect import connect
from tests.hosts import Change, Server, ServerFactory, fingerprint, keygen

TRUE = Command(("true",))


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
