"""Which patches on which hosts a command line means. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hsops.core.errors import UsageError
from hsops.core.inventory import HostSpec, Inventory, ServerSpec
from hsops.core.yaml_file import suggest


@dataclass(frozen=True, slots=True)
class Target:
    """One patch, by name, on one host."""

    host: HostSpec
    patch: str


def targets(
    inventory: Inventory,
    names: Sequence[str],
    *,
    server: ServerSpec | None,
    hosts: Sequence[HostSpec],
    known_only: bool = True,
) -> list[Target]:
    """The targets, host by host.

    Args:
        inventory: the checked file.
        names: patches the user named; none: those of ``server``, or of the servers of each of ``hosts``.
        server: the server meant; only asked when ``hosts`` is empty.
        hosts: what ``--host`` and ``--group`` name, in their order.
        known_only: False for a revert: a patch may be gone from the inventory and still be on a host.

    Raises:
        UsageError: an unknown patch, or nothing to deploy.
    """
    for name in names if known_only else ():
        if name not in inventory.patches:
            known = list(inventory.patches)
            listed = ", ".join(known) or "none"
            raise UsageError(f"no patch {name!r} in the inventory{suggest(name, known)}", fix=f"patches: {listed}")
    if hosts:
        return _some([Target(host, name) for host in hosts for name in names or _used_on(inventory, host)])
    assert server
    on = [inventory.hosts[name] for name in server.hosts]
    return _some([Target(host, name) for host in on for name in names or server.patches])


def _used_on(inventory: Inventory, host: HostSpec) -> list[str]:
    used = [name for server in inventory.servers.values() if host.name in server.hosts for name in server.patches]
    return list(dict.fromkeys(used))


def _some(found: list[Target]) -> list[Target]:
    if not found:
        raise UsageError("no patch is named, and none of the servers there has one", fix="patches: [hs-dump]")
    return found
