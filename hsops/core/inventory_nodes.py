"""``nodes`` of a server in inventory.yaml: a list of hosts, a group's name, or how many of a group's hosts."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from hsops.core.errors import Fault
from hsops.core.yaml_file import Document, suggest


def spread_out(document: Document, value: dict[str, Any]) -> list[Fault]:
    """Write every server's ``nodes`` as a list of hosts, and the first one as its ``host``; and what is wrong there.

    Args:
        document: where places come from.
        value: the whole file's, with the defaults folded in; changed in place.
    """
    servers, groups = value.get("servers"), value.get("groups")
    faults: list[Fault] = []
    for name, server in servers.items() if isinstance(servers, dict) else ():
        if not isinstance(server, dict) or "nodes" not in server:
            continue
        at = ("servers", name, "nodes")
        found = _hosts(server, groups if isinstance(groups, dict) else {})
        if isinstance(found, str):
            faults.append(document.fault(at, found))
            server.pop("nodes")
            server["host"] = next(iter(value.get("hosts") or ()), None)  # one fault is told, not what follows from it
            continue
        faults += [document.fault(at, said) for said in _wrong(found, server)]
        server["nodes"] = found if len(found) > 1 else []
        server["host"] = found[0]
    return faults


def named_hosts(server: Mapping[str, Any]) -> Iterator[tuple[tuple[Hashable, ...], Any]]:
    """The hosts of a server that ``spread_out`` went over: where each stands in it, and its name."""
    nodes = server.get("nodes")
    if isinstance(nodes, list) and nodes:
        yield from ((("nodes", i), node) for i, node in enumerate(nodes))
    else:
        yield ("host",), server.get("host")


def _hosts(server: Mapping[str, Any], groups: Mapping[str, Any]) -> list[Any] | str:
    """The hosts that are meant, or why none can be."""
    nodes = server["nodes"]
    if isinstance(nodes, list):
        return nodes or "an empty list; name the hosts, the first is the one that answers"
    if isinstance(nodes, str):
        known = groups.get(nodes)
        return known if isinstance(known, list) and known else f"no group {nodes!r}{suggest(nodes, list(groups))}"
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        return f"expected a list of hosts, a group or a number of hosts, got {nodes!r}"
    return _counted(nodes, server.get("host"), groups)


def _counted(nodes: int, host: Any, groups: Mapping[str, Any]) -> list[Any] | str:
    members = groups.get(host) if isinstance(host, str) else None
    if not isinstance(members, list):
        return [host] if nodes == 1 and host else f"which {nodes} hosts? name them, [a, b], or a group: nodes: GROUP"
    return members[:nodes] if len(members) >= nodes else f"group {host!r} has only {len(members)} hosts"


def _wrong(hosts: list[Any], server: Mapping[str, Any]) -> Iterator[str]:
    if twice := [host for i, host in enumerate(hosts) if host in hosts[:i]]:
        yield f"{twice[0]!r} is named twice"
    host, counted = server.get("host"), isinstance(server["nodes"], int)
    if host not in (None, hosts[0]) and not counted:
        yield f"host is {host!r}, and the first node {hosts[0]!r}: they must be the same; leave host out"
    if len(hosts) > 1 and server.get("executor") == "slurm":
        yield "not together with executor: slurm, whose host is a login node; one job has one node so far"
    if len(hosts) > 1 and server.get("restart"):
        yield "not together with restart: a part of a server cannot come back alone; hsops launch starts all of it"
