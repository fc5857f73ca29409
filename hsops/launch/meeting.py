"""Where the nodes of a server meet: an address of the first one that all the others reach, tried before the start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hsops.core.deadline import QUICK, Deadline
from hsops.core.errors import AgentError, HsopsError
from hsops.launch.plan import Plan
from hsops.launch.spanning import Seen, candidates, gloo_faults, parse_seen
from hsops.remote.agent import Agent

REACH_S = 4.0  # for a TCP connection between two hosts of one server
_OPEN_S = 60.0  # that the first node listens at most
_LISTEN = Deadline(idle=20.0, total=_OPEN_S + 10.0)


@dataclass(frozen=True, slots=True)
class Server:
    """A server over several hosts, as far as it matters for where its nodes meet.

    Args:
        name: in the inventory; ``hosts``: by node rank.
        env: its environment; ``dist``: host:port that the user has chosen, "" for none.
    """

    name: str
    hosts: tuple[str, ...]
    env: Mapping[str, str]
    dist: str = ""


def met(agents: Sequence[Agent], plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """The plans with the place where their ranks meet, which every node has reached; of one host as they are.

    Arguments and errors as of ``way``; ``plans``: of the nodes, by rank.
    """
    head = plans[0]
    if len(plans) == 1:
        return tuple(plans)
    dist = way(agents, Server(head.server, tuple(plan.host for plan in plans), head.env, head.dist))
    return tuple(replace(plan, dist=dist) for plan in plans)


def way(agents: Sequence[Agent], server: Server) -> str:
    """Host and port of the first node at which all the others reach it.

    Args:
        agents: of the nodes, by rank.

    Raises:
        HsopsError: a node does not reach the first one, or its name would lead the others astray.
    """
    head, given = server.hosts[0], server.dist
    wanted = int(given.rpartition(":")[2]) if given else 0
    with _listening(agents[0], server, wanted) as told:
        first = parse_seen(head, told)
        tried = [given.rpartition(":")[0].strip("[]")] if given else candidates(first, server.env)
        asked = {"addresses": tried, "port": told["port"], "token": told["token"], "patience_s": REACH_S}
        answers = {host: agent.call("reach", deadline=QUICK, **asked)
                   for host, agent in zip(server.hosts[1:], agents[1:], strict=True)}  # fmt: skip
    common = [address for address in tried if all(address not in one["failed"] for one in answers.values())]
    if not common:
        raise _apart(server, told["port"], answers)
    _check_names([first, *(parse_seen(host, one) for host, one in answers.items())], server)
    return given or f"{common[0]}:{told['port']}"


@contextmanager
def _listening(agent: Agent, server: Server, port: int) -> Iterator[Mapping[str, Any]]:
    """The first node listens meanwhile: what it says of itself."""
    try:
        with agent.stream("meet", deadline=_LISTEN, port=port, patience_s=_OPEN_S) as events:
            yield next(event for event in events if event["kind"] == "listening")
    except AgentError as error:
        if error.code in ("port-taken", "port-unusable"):
            error.why = "the ranks of all nodes meet at it"
            error.fix = f"take dist-init-addr out of args of servers.{server.name}: hsops finds a free port"
        raise


def _apart(server: Server, port: int, answers: Mapping[str, Any]) -> HsopsError:
    """Told of the host that reaches the first one at the fewest addresses."""
    most = max(answers, key=lambda host: len(answers[host]["failed"]))
    said = "; ".join(f"{address}: {why}" for address, why in answers[most]["failed"].items())
    return HsopsError(
        f"{most} does not reach {server.hosts[0]} on port {port} ({said})",
        host=most,
        why="the ranks would wait for each other until a time-out of minutes",
        fix=f"open the way between them; or name one that is open, as HOST:PORT of {server.hosts[0]}: "
        f"dist-init-addr in args of servers.{server.name}, NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME in its env",
    )


def _check_names(seen: Sequence[Seen], server: Server) -> None:
    for one, interface in gloo_faults(seen, server.env):
        raise HsopsError(
            f"the name of {one.host} is {', '.join(one.named)} on that host itself",
            host=one.host,
            why="torch's gloo would tell that address to the ranks of the other hosts, which would wait for ever",
            fix=f"env of servers.{server.name}: {{ GLOO_SOCKET_IFNAME: {interface} }}; or correct its /etc/hosts",
        )
