"""A server over several hosts, as commands see it: its agents, and its runs as wholes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hsops.cli.wiring import Session

if TYPE_CHECKING:
    from hsops.core.errors import HsopsError
    from hsops.core.inventory import ServerSpec
    from hsops.core.log_summary import LogSummary
    from hsops.core.runs import Run
    from hsops.remote.agent import Agent


def agents(session: Session, spec: ServerSpec) -> list[Agent]:
    """Of its hosts, by node rank."""
    return [session.agent(host) for host in spec.hosts]


def parts_of(
    session: Session, spec: ServerSpec, *, limit: int = 20
) -> tuple[dict[str, tuple[Run, ...]], dict[str, HsopsError]]:
    """The parts of its runs by host, each host's newest first; and why a host could not be asked.

    Raises:
        HsopsError: none can be asked.
    """
    from hsops.cli.rollout import ask
    from hsops.remote.runs import list_runs

    calls = {host: partial(list_runs, session.agent(host), spec.name, limit=limit) for host in spec.hosts}
    found, failed = ask(session, calls)
    if not found:
        raise next(iter(failed.values()))
    return found, failed


def runs_of(session: Session, spec: ServerSpec) -> tuple[Run, ...]:
    """Its runs, newest first, each whole.

    Raises:
        HsopsError: a host of it cannot be asked.
    """
    from hsops.core.nodes import together
    from hsops.remote.runs import list_runs

    if len(spec.hosts) == 1:
        return list_runs(session.agent(spec.host), spec.name)
    found, failed = parts_of(session, spec)
    if failed:
        raise next(iter(failed.values()))
    return together(found)


def summary_of(session: Session, agent: Agent, found: Run) -> LogSummary:
    """What the whole log of a run tells; of one over several hosts what all its logs do.

    Args:
        agent: on the host that ``found``, the run or a part of it, is on.
    """
    from hsops.core.log_nodes import joined

    hosts = found.node.hosts if found.node else (agent.host.name,)
    read = [_read(agent if host == agent.host.name else session.agent(host), found) for host in hosts]
    return joined(read, hosts if len(hosts) > 1 else ())


def _read(agent: Agent, found: Run) -> LogSummary:
    from hsops.core.log_mask import LogMask
    from hsops.core.milestones import LogReader
    from hsops.remote.log import read_log

    reader, mask = LogReader(tp=found.tp, sglang=found.sglang), LogMask((found.keys.api, found.keys.admin))
    for piece in read_log(agent, found.id):
        reader.feed(mask.feed(piece))
    reader.feed(mask.tail())
    return reader.summary()
