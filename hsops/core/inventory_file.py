"""Reads inventory.yaml: every fault at once, with file, line and column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hsops.core.errors import ConfigError, Fault, UsageError
from hsops.core.inventory import HostSpec, Inventory, ServerSpec
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
    faults += more
    if inventory is not None:
        faults += _references(document, inventory)
    if faults or inventory is None:
        raise ConfigError(sorted(set(faults), key=lambda f: (f.line, f.column)))
    checked: Inventory = inventory
    return checked


def find_server(inventory: Inventory, name: str | None) -> ServerSpec:
    """The server ``name``; without a name the default, or the only one.

    Raises:
        UsageError: there is no such server, or none is meant.
    """
    wanted = name or inventory.default or (next(iter(inventory.servers)) if len(inventory.servers) == 1 else None)
    if wanted is None:
        raise UsageError(
            "no server named and the inventory has no default", fix=f"name one of: {_names(inventory.servers)}"
        )
    if wanted not in inventory.servers:
        raise UsageError(
            f"no server {wanted!r} in the inventory{suggest(wanted, list(inventory.servers))}",
            fix=f"servers: {_names(inventory.servers)}",
        )
    return inventory.servers[wanted]


def select_hosts(inventory: Inventory, hosts: Sequence[str], groups: Sequence[str]) -> list[HostSpec]:
    """The hosts that ``--host`` and ``--group`` name, in the file's order.

    Without both: the default server's host, else all.

    Raises:
        UsageError: an unknown host or group.
    """
    for kind, given, known in (("host", hosts, inventory.hosts), ("group", groups, inventory.groups)):
        for name in given:
            if name not in known:
                raise UsageError(
                    f"no {kind} {name!r} in the inventory{suggest(name, list(known))}", fix=f"{kind}s: {_names(known)}"
                )
    wanted = {*hosts, *(member for group in groups for member in inventory.groups[group])}
    if not wanted and inventory.default:
        wanted = {inventory.servers[inventory.default].host}
    return [spec for name, spec in inventory.hosts.items() if not wanted or name in wanted]


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
    return value, faults


def _references(document: Document, inventory: Inventory) -> Iterator[Fault]:
    for group, members in inventory.groups.items():
        for i, member in enumerate(members):
            if member not in inventory.hosts:
                yield document.fault(
                    ("groups", group, i), f"no host {member!r}{suggest(member, list(inventory.hosts))}"
                )
    for name, server in inventory.servers.items():
        if server.host not in inventory.hosts:
            yield document.fault(
                ("servers", name, "host"), f"no host {server.host!r}{suggest(server.host, list(inventory.hosts))}"
            )
        for i, patch in enumerate(server.patches):
            if patch not in inventory.patches:
                yield document.fault(
                    ("servers", name, "patches", i), f"no patch {patch!r}{suggest(patch, list(inventory.patches))}"
                )
    if inventory.default is not None and inventory.default not in inventory.servers:
        yield document.fault(
            ("default",), f"no server {inventory.default!r}{suggest(inventory.default, list(inventory.servers))}"
        )
