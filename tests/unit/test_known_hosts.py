"""known_hosts is read as OpenSSH reads it."""

from __future__ import annotations

import base64
import threading
from pathlib import Path

import pytest

from hsops.remote.known_hosts import Entry, Key, add, entries_for, judge, key_types, read

ED, ED2, RSA = Key("ssh-ed25519", b"one"), Key("ssh-ed25519", b"two"), Key("ssh-rsa", b"three")


def line(names: str, key: Key, marker: str = "") -> str:
    """One line of the file."""
    return f"{marker}{names} {key.type} {base64.b64encode(key.blob).decode()} a comment"


def entries(tmp_path: Path, *lines: str) -> tuple[Entry, ...]:
    """The entries of a file with these lines."""
    (tmp_path / "known_hosts").write_text("\n".join(lines) + "\n")
    return read([tmp_path / "missing", tmp_path / "known_hosts"])


@pytest.mark.parametrize(
    "names, host, expected",
    [
        ("box", "box", True),
        ("Box", "bOX", True),
        ("box,10.0.0.7", "10.0.0.7", True),
        ("*.lan", "a.lan", True),
        ("gpu?", "gpu7", True),
        ("*.lan,!b.lan", "b.lan", False),
        ("[box]:2222", "[box]:2222", True),
        ("[box]:2222", "box", False),
        ("box", "[box]:2222", True),  # OpenSSH falls back to the plain name
        ("b", "box", False),
        ("|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg=", "192.168.1.61", True),
        ("|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg=", "192.168.1.62", False),
        ("|1|broken", "box", False),
    ],
)
def test_names_match_as_in_openssh(tmp_path: Path, names: str, host: str, expected: bool) -> None:
    """Lists, wildcards, negation, ports, hashes."""
    assert bool(entries_for(entries(tmp_path, line(names, ED)), host)) is expected


def test_lines_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    """Comments, blanks, short and broken lines; the others keep their numbers."""
    found = entries(tmp_path, "# box", "", "box ssh-ed25519", "box ssh-ed25519 ###", line("box", ED))

    assert [entry.line for entry in found] == [5]


@pytest.mark.parametrize(
    "lines, key, verdict",
    [
        ([], ED, "unknown"),
        ([line("box", ED)], ED, "known"),
        ([line("box", ED2), line("box", ED)], ED, "known"),
        ([line("box", ED2)], ED, "changed"),
        ([line("box", RSA)], ED, "other-type"),
        ([line("box", ED), line("box", ED, "@revoked ")], ED, "revoked"),
        ([line("box", ED2, "@revoked ")], ED, "unknown"),
        ([line("box", ED, "@cert-authority ")], ED, "unknown"),
        ([line("other", ED)], ED, "unknown"),
    ],
)
def test_a_key_is_judged(tmp_path: Path, lines: list[str], key: Key, verdict: str) -> None:
    """By all lines about the host together."""
    assert judge(entries_for(entries(tmp_path, *lines), "box"), key).verdict == verdict


def test_the_known_types_come_once_and_in_order(tmp_path: Path) -> None:
    """What the host is asked for first."""
    found = entries(tmp_path, line("box", RSA), line("box", ED), line("box", ED2), line("box", ED, "@revoked "))

    assert key_types(found) == ("ssh-rsa", "ssh-ed25519")


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("before", [b"", b"# no newline at the end"])
def test_an_added_line_is_found_again(tmp_path: Path, hashed: bool, before: bytes) -> None:
    """Also behind a line without an end; the folder is made, private."""
    file = tmp_path / "ssh" / "known_hosts"
    if before:
        file.parent.mkdir(mode=0o700)
        file.write_bytes(before)

    add(file, "[box]:2222", ED, hashed=hashed)

    assert judge(entries_for(read([file]), "[box]:2222"), ED).verdict == "known"
    assert ("box" in file.read_text()) is not hashed
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_two_writers_leave_two_whole_lines(tmp_path: Path) -> None:
    """Appends do not tear each other."""
    file = tmp_path / "known_hosts"
    threads = [threading.Thread(target=add, args=(file, f"h{i}", ED), kwargs={"hashed": True}) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(read([file])) == 20


def test_a_fingerprint_reads_as_openssh_prints_it() -> None:
    """SHA256, base64 without padding."""
    blob = base64.b64decode("AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl")  # github.com

    assert str(Key("ssh-ed25519", blob)) == "ED25519 SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"
