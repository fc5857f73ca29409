"""known_hosts as OpenSSH reads it (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"): read, judge a key, add one.

paramiko's own reader forgets file and line, knows no wildcards and takes a revoked key for a good one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from hsops.core.files import make_durable

Verdict = Literal["known", "unknown", "changed", "other-type", "revoked"]

_PRETTY = {"ssh-rsa": "RSA", "ssh-ed25519": "ED25519", "ssh-dss": "DSA"}


@dataclass(frozen=True, slots=True)
class Key:
    """A host's public key.

    Args:
        type: its SSH name, ``ssh-ed25519``.
        blob: the key in the wire format.
    """

    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """``SHA256:...`` as OpenSSH shows it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def __str__(self) -> str:
        pretty = _PRETTY.get(self.type) or ("ECDSA" if "ecdsa" in self.type else self.type)
        return f"{pretty} {self.fingerprint}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line.

    Args:
        file, line: where; lines count from 1.
        marker: ``@revoked``, ``@cert-authority`` or empty.
        names: the first field as written.
        key: whose.
    """

    file: Path
    line: int
    marker: str
    names: str
    key: Key

    def is_for(self, name: str) -> bool:
        """Whether the line speaks of host ``name`` (``host`` or ``[host]:port``)."""
        if self.names.startswith("|1|"):
            return _hashed_matches(self.names, name)
        patterns = self.names.lower().split(",")
        name = name.lower()
        if any(p.startswith("!") and _matches(p[1:], name) for p in patterns):
            return False
        return any(_matches(p, name) for p in patterns)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What known_hosts says about a key.

    Args:
        verdict: ``known``; ``unknown``; ``changed``: another key of this type is there; ``other-type``: only keys of
            other types are there; ``revoked``.
        entry: the line that decided; None when unknown.
    """

    verdict: Verdict
    entry: Entry | None = None


def read(files: Iterable[Path]) -> tuple[Entry, ...]:
    """Every line that can be read, in order; missing files and broken lines are left out, as OpenSSH does."""
    return tuple(entry for file in files for entry in _lines(file))


def entries_for(entries: Sequence[Entry], name: str) -> tuple[Entry, ...]:
    """The lines about ``name``. For another port than 22 the plain host's lines count as well, as for OpenSSH."""
    plain = match[1] if (match := re.match(r"^\[(.+)\]:\d+$", name)) else name
    found = tuple(e for e in entries if e.is_for(name))
    return found or tuple(e for e in entries if plain != name and e.is_for(plain))


def judge(entries: Sequence[Entry], key: Key) -> Judgement:
    """What the lines about one host say of the key that it presents."""
    for entry in entries:
        if entry.marker == "@revoked" and entry.key == key:
            return Judgement("revoked", entry)
    plain = [entry for entry in entries if not entry.marker]
    for entry in plain:
        if entry.key == key:
            return Judgement("known", entry)
    same = [entry for entry in plain if entry.key.type == key.type]
    if same:
        return Judgement("changed", same[0])
    return Judgement("other-type", plain[0]) if plain else Judgement("unknown")


def key_types(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Types of the known keys, without doubles: what to ask the host for first."""
    return tuple(dict.fromkeys(entry.key.type for entry in entries if not entry.marker))


def add(file: Path, name: str, key: Key, *, hashed: bool) -> None:
    """Append a line and make it durable. Two writers at once leave two whole lines."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = (
        f"{_hash(name, secrets.token_bytes(20)) if hashed else name} {key.type} {base64.b64encode(key.blob).decode()}\n"
    )
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, (("\n" if cut else "") + line).encode())
        make_durable(descriptor)
    finally:
        os.close(descriptor)


def _lines(file: Path) -> Iterator[Entry]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        if len(fields) < 3:
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        yield Entry(file, number, marker, fields[0], Key(fields[1], blob))


def _matches(pattern: str, name: str) -> bool:
    """OpenSSH's wildcards are ``*`` and ``?``; brackets are literal, as in ``[host]:22``."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def _hashed_matches(field: str, name: str) -> bool:
    try:
        _, _, salt, _ = field.split("|")
        return hmac.compare_digest(_hash(name.lower(), base64.b64decode(salt)), field)
    except (ValueError, binascii.Error):
        return False


def _hash(name: str, salt: bytes) -> str:
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
