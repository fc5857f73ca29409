"""A server over several hosts, as commands see it: its agents, and its runs as wholes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hsops.cli.wiring import Session
from hsops.core.errors import AgentError, HsopsError

if TYPE_CHECKING:
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


def agent_on(session: Session, host: str, run: Run) -> Agent:
    """The agent on a host that a run's own record names.

    Raises:
        HsopsError: the inventory does not name it any more.
    """
    if host not in session.inventory.hosts:
        raise unnamed(run, host)
    return session.agent(host)


def unnamed(run: Run, host: str) -> HsopsError:
    """The error of a host that only a run's own record names."""
    return HsopsError(
        f"run {run.id} was launched on {host} too, which is no host of the inventory any more",
        host=host,
        fix=f"name {host} under hosts again; what is left there is ended by hsops stop --run {run.id}",
    )


def nothing_of(run: Run, host: str) -> HsopsError:
    """The error of a run of which a host has no part."""
    return HsopsError(
        f"nothing of run {run.id} is on {host}",
        host=host,
        why="its launch was cut off before it got there, or its record there was removed",
        fix="hsops launch --replace ends what there is of it and starts it anew" if run.alive else "",
    )


def summary_of(session: Session, agent: Agent, found: Run) -> LogSummary:
    """What the whole log of a run tells; of one over several hosts what all its logs do.

    Args:
        agent: on the host that ``found``, the run or a part of it, is on.

    Raises:
        HsopsError: one of them cannot be read.
    """
    summary, failed = logs_of(session, agent, found)
    for error in failed.values():
        raise error
    return summary


def logs_of(session: Session, agent: Agent, found: Run) -> tuple[LogSummary, dict[str, HsopsError]]:
    """The same of those logs that can be read, and why others cannot.

    Raises:
        HsopsError: none can.
    """
    from hsops.core.log_nodes import joined

    own = found.node.host if found.node else agent.host.name
    hosts = found.node.hosts if found.node else (own,)
    read: dict[str, LogSummary] = {}
    failed: dict[str, HsopsError] = {}
    for host in hosts:
        told = _read_or_why(session, agent if host == own else None, host, found)
        if isinstance(told, HsopsError):
            failed[host] = told
        else:
            read[host] = told
    if not read:
        raise failed[own]
    return joined([*read.values()], [*read] if len(hosts) > 1 else ()), failed


def _read_or_why(session: Session, agent: Agent | None, host: str, found: Run) -> LogSummary | HsopsError:
    try:
        return _read(agent or agent_on(session, host, found), found)
    except AgentError as error:
        return nothing_of(found, host) if error.code == "no-such-run" else error
    except HsopsError as error:
        return error


def _read(agent: Agent, found: Run) -> LogSummary:
    from hsops.core.log_mask import LogMask
    from hsops.core.milestones import LogReader
    from hsops.remote.log import read_log

    reader, mask = LogReader(tp=found.tp, sglang=found.sglang), LogMask((found.keys.api, found.keys.admin))
    for piece in read_log(agent, found.id):
        reader.feed(mask.feed(piece))
    reader.feed(mask.tail())
    return reader.summary()
