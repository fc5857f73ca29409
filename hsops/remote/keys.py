"""The private keys offered to a host, in OpenSSH's order: configured keys of the agent, its other keys, files."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.auth_strategy import AuthSource, AuthStrategy, InMemoryPrivateKey
from paramiko.pkey import UnknownKeyType

from hsops.remote.target import Target

_UNREADABLE = (OSError, ValueError, TypeError, UnknownKeyType, UnsupportedAlgorithm, paramiko.SSHException)


class Keys(AuthStrategy):
    """The keys for one host.

    ``tried`` tells afterwards what was offered and what could not be used, a line each.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(ssh_config=paramiko.SSHConfig())
        self._target, self.tried = target, list[str]()

    def get_sources(self) -> Iterator[AuthSource]:
        """Every key, once."""
        agent = self._agent_keys()
        configured = {_public(path) for path in self._target.identities}
        yield from (self._offer(key, "of the agent") for key in agent if key.asbytes() in configured)
        if not self._target.identities_only:
            yield from (self._offer(key, "of the agent") for key in agent if key.asbytes() not in configured)
        held = {key.asbytes() for key in agent}
        for path in self._target.identities:
            if path.exists() and (key := self._load(path)) and key.asbytes() not in held:
                yield from self._certified(path)
                yield self._offer(key, str(path))

    def _agent_keys(self) -> tuple[paramiko.PKey, ...]:
        if not self._target.agent:
            return ()
        with suppress(paramiko.SSHException, OSError):
            return tuple(paramiko.Agent().get_keys())
        return ()

    def _load(self, path: Path) -> paramiko.PKey | None:
        try:
            return paramiko.PKey.from_path(path)
        except _UNREADABLE as error:
            locked = isinstance(error, TypeError | paramiko.PasswordRequiredException)  # cryptography's way to ask
            why = "has a passphrase and is not in the agent: ssh-add it" if locked else f"cannot be used ({error})"
            self.tried.append(f"{path} {why}")
            return None

    def _certified(self, path: Path) -> Iterator[AuthSource]:
        """The key with each CertificateFile; ``<path>-cert.pub`` is paramiko's own doing."""
        for certificate in self._target.certificates:
            with suppress(*_UNREADABLE):
                key = paramiko.PKey.from_path(path)
                key.load_certificate(str(certificate))
                yield self._offer(key, f"{path} with {certificate}")

    def _offer(self, key: paramiko.PKey, where: str) -> AuthSource:
        self.tried.append(f"{key.fingerprint} {where}")
        return InMemoryPrivateKey(self._target.user, key)


def _public(path: Path) -> bytes | None:
    """The public half beside a private key file, by which its twin in the agent is known."""
    for candidate in (path.with_name(path.name + ".pub"), path):
        with suppress(OSError, ValueError, IndexError, UnicodeDecodeError):
            kind, blob = candidate.read_text().split()[:2]
            if kind.startswith(("ssh-", "ecdsa-", "sk-")):
                return base64.b64decode(blob)
    return None
