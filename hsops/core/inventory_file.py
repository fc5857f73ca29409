"""Reads inventory.yaml: every fault at once, with file, line and column."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hsops.core.errors import ConfigError, Fault, UsageError
from hsops.core.inventory import HostSpec, Inventory, ServerSpec
from hsops.core.inventory_nodes import named_hosts, spread_out
from hsops.core.yaml_file import Document, read, suggest, validate

_NAMED = {"hosts": "host", "servers": "server", "patches": None}
MISSING = "run hsops where inventory.yaml lies, or name it: hsops --inventory FILE ..."


def load(path: Path) -> Inventory:
    """The inventory at ``path``.

    Raises:
        ConfigError: with every fault of the file.
    """
    document = read(path, what="inventory", fix=MISSING)
    value, faults = _with_defaults(document)
    inventory, more = validate(document, Inventory, value)
    faults += [*more, *_references(document, value)]
    if faults or inventory is None:
        raise ConfigError(sorted(set(faults), key=lambda f: (f.line, f.column)))
    checked: Inventory = inventory
    return checked


def faults_in(path: Path) -> Callable[[tuple[Hashable, ...], str], Fault]:
    """A function that makes a fault of a path in the file, at its key, or at that of ``defaults`` which it comes from.

    For faults that show only when a value is used. The file is read once more, and only when there is one.
    """
    document = cache(lambda: read(path, what="inventory", fix=MISSING))

    def fault(at: tuple[Hashable, ...], message: str) -> Fault:
        kind = _NAMED.get(str(at[0]))
        inherited = ("defaults", kind, *at[2:])
        own = at in document().keys
        return document().fault(
            inherited if kind and not own and inherited in document().keys else at, message, at_key=True
        )

    return fault


def find_server(inventory: Inventory, name: str | None, hosts: Sequence[str] = ()) -> ServerSpec:
    """The server ``name``; without a name the default, or the only one.

    Args:
        hosts: what ``--host`` and ``--group`` name: the server must be on one of them.

    Raises:
        UsageError: there is no such server, or none is meant.
    """
    there = [known for known, spec in inventory.servers.items() if not hosts or {*spec.hosts} & {*hosts}]
    wanted = name or (inventory.default if inventory.default in there or not hosts else None)
    wanted = wanted or (there[0] if len(there) == 1 else None)
    if wanted is None:
        which = f"and none of those on {', '.join(hosts)} is meant" if hosts else "and the inventory has no default"
        raise UsageError(f"no server named {which}", fix=f"name one of: {_names(there)}")
    if wanted not in inventory.servers:
        raise UsageError(
            f"no server {wanted!r} in the inventory{suggest(wanted, list(inventory.servers))}",
            fix=f"servers: {_names(inventory.servers)}",
        )
    if wanted not in there:
        raise UsageError(
            f"server {wanted} is on {', '.join(inventory.servers[wanted].hosts)}, not on {', '.join(hosts)}",
            fix=f"servers there: {_names(there)}; or leave --host and --group out",
        )
    return inventory.servers[wanted]


def find_servers(
    inventory: Inventory, names: Sequence[str], hosts: Sequence[str], wanted: Callable[[ServerSpec], bool]
) -> list[ServerSpec]:
    """The servers ``names``, each once; without names those ``wanted`` on ``hosts``; without both the default.

    Args:
        names: each may be several with commas between.
        hosts: what ``--host`` and ``--group`` name.
        wanted: of servers that nobody named.

    Raises:
        UsageError: there is no such server, or none is meant.
    """
    named = [name.strip() for some in names for name in some.split(",") if name.strip()]
    if named or not hosts:
        return [find_server(inventory, name, hosts) for name in dict.fromkeys(named)] or [find_server(inventory, None)]
    there = [spec for spec in inventory.servers.values() if {*spec.hosts} & {*hosts}]
    return [spec for spec in there if wanted(spec)] or [find_server(inventory, None, hosts)]


def select_hosts(inventory: Inventory, hosts: Sequence[str], groups: Sequence[str]) -> list[HostSpec]:
    """The hosts that ``--host`` and ``--group`` name, in that order; a group's in its own.

    Without both: the default server's, else all.

    Raises:
        UsageError: an unknown host or group.
    """
    for kind, given, known in (("host", hosts, inventory.hosts), ("group", groups, inventory.groups)):
        for name in given:
            if name not in known:
                raise UsageError(
                    f"no {kind} {name!r} in the inventory{suggest(name, list(known))}", fix=f"{kind}s: {_names(known)}"
                )
    wanted = [*hosts, *(member for group in groups for member in inventory.groups[group])]
    if not wanted:
        wanted = list(inventory.servers[inventory.default].hosts if inventory.default else inventory.hosts)
    return [inventory.hosts[name] for name in dict.fromkeys(wanted)]


def _names(known: Any) -> str:
    return ", ".join(known) or "none"


def _with_defaults(document: Document) -> tuple[Any, list[Fault]]:
    """The file's value with ``defaults`` folded into hosts and servers and each entry told its name."""
    if not isinstance(document.value, dict):
        return document.value, []
    value = dict(document.value)
    defaults = value.pop("defaults", None) or {}
    faults = []
    if not isinstance(defaults, dict):
        return value, [document.fault(("defaults",), f"expected a mapping, got {type(defaults).__name__}")]
    for key in defaults:
        if key not in ("host", "server"):
            faults.append(
                document.fault(("defaults", key), f"unknown key{suggest(key, ['host', 'server'])}", at_key=True)
            )
        elif not isinstance(defaults[key], dict):
            faults.append(document.fault(("defaults", key), "expected a mapping"))
    for section, default_key in _NAMED.items():
        entries = value.get(section)
        if isinstance(entries, dict):
            base = defaults.get(default_key) if default_key else None
            base = base if isinstance(base, dict) else {}
            value[section] = {n: {**base, **e, "name": n} if isinstance(e, dict) else e for n, e in entries.items()}
    return value, faults + spread_out(document, value)


def _references(document: Document, value: Any) -> Iterator[Fault]:
    """Names that nothing bears, judged on the raw value so that they show beside faults of form."""
    known = {section: _mapping(value, section) for section in ("hosts", "groups", "servers", "patches")}

    def missing(path: tuple[Hashable, ...], name: Any, section: str) -> Iterator[Fault]:
        if isinstance(name, str) and name not in known[section]:
            yield document.fault(
                path, f"no {section[:-1].replace('patche', 'patch')} {name!r}{suggest(name, list(known[section]))}"
            )

    for group, members in known["groups"].items():
        for i, member in enumerate(members if isinstance(members, list) else ()):
            yield from missing(("groups", group, i), member, "hosts")
    servers = {name: server for name, server in known["servers"].items() if isinstance(server, dict)}
    for name, server in servers.items():
        for path, host in named_hosts(server):
            yield from missing(("servers", name, *path), host, "hosts")
        yield from _slurm_faults(document, name, server, known["hosts"])
        given = server.get("patches")
        patches = given if isinstance(given, list) else []
        for i, patch in enumerate(patches):
            yield from missing(("servers", name, "patches", i), patch, "patches")
            if _captures(patch, known) and any(_captures(earlier, known) for earlier in patches[:i]):
                yield document.fault(
                    ("servers", name, "patches", i), "one server captures once: name one patch of kind hs-dump"
                )
    if isinstance(value, dict):
        yield from missing(("default",), value.get("default"), "servers")


_LOCAL = ("/dev/shm", "/run/shm")  # noqa: S108 - named to be refused


def _slurm_faults(document: Document, name: Hashable, server: dict[str, Any], hosts: dict[str, Any]) -> Iterator[Fault]:
    """A job's ranks write on a compute node, and the login node reads: both must see the folder."""
    if server.get("executor") != "slurm":
        if "slurm" in server:
            message = "it has no effect without executor: slurm"
            yield document.fault(("servers", name, "slurm"), message, at_key=True)
        return
    host = hosts.get(str(server.get("host")))
    dumps = host.get("dumps", "/dev/shm/sglang_hs") if isinstance(host, dict) else ""  # noqa: S108
    if server.get("patches") and isinstance(dumps, str) and any(f"{dumps}/".startswith(f"{top}/") for top in _LOCAL):
        message = f"of hosts.{server.get('host')}, dumps is {dumps}: memory of the compute node alone"
        yield document.fault(
            ("servers", name, "executor"), f"{message}; name a folder that the login node sees too", at_key=True
        )


def _captures(patch: Any, known: dict[str, dict[str, Any]]) -> bool:
    """The patch of this name is, or is taken for, one of kind hs-dump."""
    entry = known["patches"].get(patch) if isinstance(patch, str) else None
    return not isinstance(entry, dict) or entry.get("kind", "hs-dump") == "hs-dump"


def _mapping(value: Any, section: str) -> dict[str, Any]:
    entries = value.get(section) if isinstance(value, dict) else None
    return entries if isinstance(entries, dict) else {}
