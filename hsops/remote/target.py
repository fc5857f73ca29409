"""Where an inventory's ``ssh:`` leads, resolved by OpenSSH itself.

``ssh -G`` prints what OpenSSH would do, with Include, Match, tokens and the system's file taken into account. Both the
control connection and bulk streams follow it.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hsops.core.errors import ConfigError, Fault, UnreachableError
from hsops.core.way import Way

_DESTINATION = re.compile(r"^(?:(?P<user>.+)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:@\[\]]+))(?::(?P<port>\d+))?$")
NO_CLIENT = "apt-get install openssh-client"


@dataclass(frozen=True, slots=True)
class Target:
    """A host as OpenSSH's client sees it.

    Args:
        name: in the inventory.
        destination: ``user@host`` or alias for ``ssh``.
        config: ``-F FILE`` for ``ssh``, or nothing.
        at_port: ``-p PORT`` for ``ssh``, when the inventory names one.
        user, hostname, port: where it ends up.
        key_name: what known_hosts calls it: HostKeyAlias, hostname, or ``[hostname]:port``.
        known_hosts: files to look in, the user's first; ``accept-new`` adds to the first.
        hash_names: write host names hashed.
        accept_new: an unknown host key is stored instead of refused.
        identities: private key files, in order.
        certificates: files of CertificateFile.
        identities_only: no other keys of the agent.
        agent: use the agent at all.
        jump: ProxyJump's hops; empty without.
        proxy: ProxyCommand, tokens expanded; empty without.
        keepalive: seconds between questions to the host.
    """

    name: str
    destination: str
    config: tuple[str, ...]
    at_port: tuple[str, ...]
    user: str
    hostname: str
    port: int
    key_name: str
    known_hosts: tuple[Path, ...]
    hash_names: bool
    accept_new: bool
    identities: tuple[Path, ...]
    certificates: tuple[Path, ...]
    identities_only: bool
    agent: bool
    jump: str
    proxy: str
    keepalive: float = 5.0

    def __str__(self) -> str:
        return f"{self.user}@{self.hostname}:{self.port}"


def resolve(way: Way, *, accept_new: bool = False) -> Target:
    """Ask OpenSSH where ``way.ssh`` leads.

    Raises:
        ConfigError: its configuration has a fault, or ``ssh:`` names no host.
        UnreachableError: OpenSSH's client is not installed.
    """
    if way.ssh_config and not Path(way.ssh_config).expanduser().is_file():
        fault = Fault("inventory", 0, 0, f"hosts.{way.name}.ssh_config", f"there is no file {way.ssh_config}")
        raise ConfigError([fault], fix="correct it; or, when it is the lab's, make the lab: hsops lab up")
    destination, config, at_port = arguments(way)
    lines = _ask(config, [*at_port, "--", destination], way)
    target = parse(way.name, destination, lines, config=config, at_port=at_port)
    return replace(target, accept_new=target.accept_new or accept_new, keepalive=way.keepalive)


def arguments(way: Way) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """``user@host:port`` as OpenSSH takes it: the destination, ``-F FILE`` and ``-p PORT``."""
    config = ("-F", str(Path(way.ssh_config).expanduser())) if way.ssh_config else ()
    if way.ssh.startswith("ssh://") or (way.ssh.count(":") > 1 and "[" not in way.ssh):  # a bare IPv6 address
        return way.ssh, config, ()
    match = _DESTINATION.match(way.ssh)
    if not match:
        raise _no_address(way, "is not user@host[:port] or an alias")
    user = f"{match['user']}@" if match["user"] else ""
    port = ("-p", match["port"]) if match["port"] else ()
    return user + (match["v6"] or match["host"]), config, port


def parse(
    name: str,
    destination: str,
    lines: Sequence[str],
    *,
    config: tuple[str, ...] = (),
    at_port: tuple[str, ...] = (),
) -> Target:
    """What ``ssh -G`` printed, as a Target."""
    found: dict[str, list[str]] = {}
    for line in lines:
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), []).append(value)
    one = {key: values[0] for key, values in found.items()}
    hostname, port = one["hostname"].strip("[]"), int(one["port"])
    tokens = _tokens(destination.rpartition("@")[2], hostname, port, one["user"])
    alias = one.get("hostkeyalias", "none")
    names = [hostname if port == 22 else f"[{hostname}]:{port}", alias]
    files = [one.get("userknownhostsfile", ""), one.get("globalknownhostsfile", "")]
    return Target(
        name=name,
        destination=destination,
        config=config,
        at_port=at_port,
        user=one["user"],
        hostname=hostname,
        port=port,
        key_name=names[alias != "none"],
        known_hosts=tuple(_path(f, tokens) for text in files for f in _split(text) if f not in ("", "none")),
        hash_names=one.get("hashknownhosts") == "yes",
        accept_new=one.get("stricthostkeychecking") in ("accept-new", "no", "off", "false"),
        identities=tuple(_path(f, tokens) for f in found.get("identityfile", []) if f != "none"),
        certificates=tuple(_path(f, tokens) for f in found.get("certificatefile", []) if f != "none"),
        identities_only=one.get("identitiesonly") == "yes",
        agent=one.get("identityagent") != "none",
        jump=_unless_none(one.get("proxyjump", "")),
        proxy=expand(_unless_none(one.get("proxycommand", "")), tokens),
    )


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """``%h`` and the like; an unknown token stays."""
    return re.sub(r"%(.)", lambda m: tokens.get(m[1], m[0]), text)


def _tokens(given: str, hostname: str, port: int, user: str) -> dict[str, str]:
    me = pwd.getpwuid(os.getuid())
    local = socket.gethostname()
    return {
        "%": "%",
        "d": me.pw_dir,
        "u": me.pw_name,
        "i": str(me.pw_uid),
        "l": local,
        "L": local.partition(".")[0],
        "h": hostname,
        "n": given,
        "p": str(port),
        "r": user,
    }


def _path(text: str, tokens: Mapping[str, str]) -> Path:
    text = text.strip('"')
    return Path(expand(tokens["d"] + text[1:] if text.startswith("~/") else text, tokens))


def _split(text: str) -> list[str]:
    """``ssh -G`` joins several files with blanks and quotes nothing; a file may have blanks in its name as well."""
    return [text] if Path(text).exists() else re.split(r" (?=[/~]|none$)", text)


def _unless_none(value: str) -> str:
    return "" if value == "none" else value


def _no_address(way: Way, why: str) -> ConfigError:
    return ConfigError([Fault("inventory", 0, 0, f"hosts.{way.name}.ssh", f"{way.ssh!r} {why}")])


def _ask(config: Sequence[str], address: Sequence[str], way: Way) -> list[str]:
    """What ``ssh -G`` prints. Its no is about the address when with the same configuration it takes another one."""
    done = _openssh([*config, *address], way)
    if done.returncode == 0:
        return done.stdout.decode(errors="replace").splitlines()
    said = done.stderr.decode(errors="replace").strip().splitlines() or ["ssh -G failed"]
    if _openssh([*config, "--", "localhost"], way).returncode == 0:
        usage = said[0].startswith("usage:")
        raise _no_address(way, "is no address for ssh" + ("" if usage else f": {said[-1]}"))
    raise ConfigError([Fault(way.ssh_config or "~/.ssh/config", 0, 0, "", line) for line in said])


def _openssh(arguments: Sequence[str], way: Way) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["ssh", "-G", "-T", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=20,
        )
    except FileNotFoundError:
        raise UnreachableError("OpenSSH's client is not installed here", host=way.name, fix=NO_CLIENT) from None
    except subprocess.TimeoutExpired:
        raise UnreachableError("ssh -G does not end; is there a slow `Match exec`?", host=way.name) from None
