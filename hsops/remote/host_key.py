"""Is the host the one we think it is? Strict; a first-seen key is stored only on request."""

from __future__ import annotations

import threading
from contextlib import suppress

import paramiko

from hsops.core.errors import HostKeyError
from hsops.remote.known_hosts import Entry, Judgement, Key, add, entries_for, judge, key_types, read
from hsops.remote.target import Target

_storing = threading.Lock()


class HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """Judges every key: paramiko's own tables stay empty, so that it always asks. Runs before authentication."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        check(self._target, Key(key.get_name(), key.asbytes()))


def known_entries(target: Target) -> tuple[Entry, ...]:
    """What known_hosts says about the host."""
    return entries_for(read(target.known_hosts), target.key_name)


def algorithms(target: Target, offered: tuple[str, ...]) -> list[str]:
    """``offered`` host key algorithms with those first whose keys are known, so that the known key is the one shown."""
    wanted = [name for kind in key_types(known_entries(target)) for name in _signatures(kind) if name in offered]
    return [*wanted, *(name for name in offered if name not in wanted)]


def check(target: Target, key: Key) -> None:
    """Accept ``key`` or say why not.

    Raises:
        HostKeyError: it is unknown (and not to be accepted), not the one in known_hosts, or revoked.
    """
    with _storing:
        judgement = judge(known_entries(target), key)
        if judgement.verdict == "unknown" and target.accept_new:
            _store(target, key)
        elif judgement.verdict != "known":
            raise _refusal(target, key, judgement)


def _store(target: Target, key: Key) -> None:
    if not target.known_hosts:
        return
    try:
        add(target.known_hosts[0], target.key_name, key, hashed=target.hash_names)
    except OSError as error:
        if str(target.known_hosts[0]) != "/dev/null":
            raise HostKeyError(
                f"the new host key cannot be stored in {target.known_hosts[0]}: {error.strerror}", host=target.name
            ) from None


def _refusal(target: Target, key: Key, judgement: Judgement) -> HostKeyError:
    entry, name = judgement.entry, target.key_name
    if judgement.verdict == "unknown" or entry is None:
        return HostKeyError(
            f"the host key of {name} is unknown ({key})",
            host=target.name,
            why="without a known key nobody can tell whether this is the machine you mean",
            fix="compare the fingerprint with the host's own (ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub there), "
            "then: hsops doctor --accept-new",
        )
    place = f"{entry.file} line {entry.line}"
    if judgement.verdict == "revoked":
        return HostKeyError(f"the host key of {name} is revoked ({key}; {place})", host=target.name)
    changed = judgement.verdict == "changed"
    return HostKeyError(
        f"the host key of {name} {'changed' if changed else 'is of another type'} ({key}; {place} has {entry.key})",
        host=target.name,
        why="either the machine was reinstalled or someone is in between",
        fix=f"if you know why: ssh-keygen -f {entry.file} -R '{name}', then hsops doctor --accept-new",
    )


def _signatures(key_type: str) -> tuple[str, ...]:
    """The algorithms that a key of this type signs with; RSA has three."""
    return ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa") if key_type == "ssh-rsa" else (key_type,)


def prefer_known(transport: paramiko.Transport, target: Target) -> None:
    """Ask the host for a key of a type that known_hosts has."""
    options = transport.get_security_options()
    with suppress(ValueError):  # a paramiko that does not know one of its own names: its order stays
        options.key_types = algorithms(target, tuple(options.key_types))
