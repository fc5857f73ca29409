"""The runs on a host, read through the agent."""

from __future__ import annotations

from hsops.core.deadline import QUICK
from hsops.core.runs import Run, parse_run
from hsops.remote.agent import Agent


def list_runs(agent: Agent, server: str | None = None) -> tuple[Run, ...]:
    """Runs on the host, newest first; only of ``server`` when named."""
    found = agent.call("run-list", deadline=QUICK, server=server)["runs"]
    return tuple(parse_run(raw) for raw in found)


def current_run(agent: Agent, server: str) -> Run | None:
    """The run of ``server`` that is alive, if any."""
    return next((run for run in list_runs(agent, server) if run.alive), None)
