"""One server over several hosts: what its nodes get beside the flags of any server, and what contradicts it. Pure."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hsops.core.errors import HsopsError
from hsops.core.inventory import ServerSpec
from hsops.core.runs import Node

if TYPE_CHECKING:
    from hsops.launch.plan import Plan

DIST = "{dist}"
FLAG = "dist-init-addr"
_OWN = {"nnodes": "nodes", "node-rank": "the order of nodes"}
_OTHER_AXES = ("pp-size", "pipeline-parallel-size", "dp-size", "data-parallel-size")
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a host says of its network.

    Args:
        host: its name in the inventory.
        addresses: (interface, IPv4 address).
        named: what its own name resolves to.
        boot: changes with every start of a machine: two hosts that share it are one.
    """

    host: str
    addresses: tuple[tuple[str, str], ...]
    named: tuple[str, ...]
    boot: str


def parse_seen(host: str, raw: Mapping[str, Any]) -> Seen:
    """Of the agent's ``meet`` and ``reach``."""
    return Seen(host, tuple((i, a) for i, a in raw["addresses"]), tuple(dict.fromkeys(raw["named"])), raw["boot"])


def on_node(plan: Plan, node: Node | None) -> Plan:
    """The plan of one node; as it is for a server on one host."""
    if node is None:
        return plan
    words, dist = list(plan.argv), ""
    if f"--{FLAG}" in words:
        at = words.index(f"--{FLAG}")
        dist = words[at + 1]
        del words[at : at + 2]
    words += ["--nnodes", str(node.of), "--node-rank", str(node.rank), f"--{FLAG}", DIST]
    return replace(plan, argv=tuple(words), node=node, dist=dist)


def faults(server: ServerSpec, spelt: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What cannot be on several hosts. ``spelt``: SGLang's flag -> the name in ``args``."""
    if not server.nodes:
        return
    many = len(server.nodes)
    for flag, field in _OWN.items():
        if flag in spelt:
            yield ("args", spelt[flag]), f"hsops fills it in, from {field} of the server; take it out"
    for flag in _OTHER_AXES:
        if flag in spelt and str(server.args[spelt[flag]]) != "1":
            yield ("args", spelt[flag]), f"not over several hosts yet: each of the {many} gets tp/{many} of the ranks"
    if server.tp % many:
        yield ("tp",), f"{server.tp} ranks cannot be spread evenly over {many} hosts"
    if FLAG in spelt:
        host, colon, port = str(server.args[spelt[FLAG]]).rpartition(":")
        if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
            yield ("args", spelt[FLAG]), f"{server.args[spelt[FLAG]]!r} is not HOST:PORT"


def joined(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """The plans of all nodes, by rank, as one launch: they share a ``spec_hash``.

    Raises:
        HsopsError: SGLang or a patch is not the same on all hosts.
    """
    if len(plans) == 1:
        return tuple(plans)
    head = plans[0]
    for other in plans[1:]:
        for what, mine, its in (
            ("SGLang", {"": head.deployed.sglang}, {"": other.deployed.sglang}),
            ("patch", head.deployed.patches, other.deployed.patches),
        ):
            for name in sorted({*mine, *its}):
                if mine.get(name) != its.get(name):
                    raise _unlike(f"{what} {name}".strip(), head, mine.get(name), other, its.get(name))
    words = "".join(f"{plan.host} {plan.spec_hash} {plan.dist} " for plan in plans)
    told = hashlib.sha256(words.encode()).hexdigest()[:12]
    return tuple(replace(plan, spec_hash=told) for plan in plans)


def _unlike(what: str, head: Plan, mine: str | None, other: Plan, its: str | None) -> HsopsError:
    deploys = f"hsops deploy --server {head.server} changes all its hosts"
    return HsopsError(
        f"{what} is {its or 'unknown'} on {other.host}, and {mine or 'unknown'} on {head.host}",
        host=other.host,
        why="the ranks of one server compute together: other code on one host ends in a hang, or in wrong numbers",
        fix=deploys if what != "SGLang" else f"install the same SGLang on {head.host} and {other.host}",
    )


def candidates(head: Seen, env: Mapping[str, str]) -> list[str]:
    """Addresses of the first node at which the others may find it, the likeliest first.

    Those of an interface that ``env`` names come first, of this machine alone last.
    """
    named = [word for name in _INTERFACES for word in env.get(name, "").lstrip("=").split(",") if word]

    def order(one: tuple[str, str]) -> tuple[bool, bool, bool]:
        interface, address = one
        return (
            not any(interface.startswith(word) for word in named),
            ipaddress.ip_address(address).is_loopback,
            interface.startswith(("docker", "br-", "veth", "virbr", "cni", "flannel")),
        )

    return [address for _, address in sorted(head.addresses, key=order)]


def gloo_faults(seen: Sequence[Seen], env: Mapping[str, str]) -> Iterator[tuple[Seen, str]]:
    """Hosts whose ranks would tell the others an address of their own machine, and the interface that helps.

    torch's gloo, which SGLang uses beside NCCL, takes the address of the host's name unless GLOO_SOCKET_IFNAME is set;
    Debian gives it 127.0.1.1.
    """
    if env.get("GLOO_SOCKET_IFNAME") or len({one.boot for one in seen}) == 1:
        return
    for one in seen:
        if one.named and all(ipaddress.ip_address(a.partition("%")[0]).is_loopback for a in one.named):
            ways = [i for i, address in one.addresses if not ipaddress.ip_address(address).is_loopback]
            yield one, (ways or ["eth0"])[0]
