"""``diagnose``: ask the agent for evidence and judge it."""

from __future__ import annotations

from typing import Any

from hsops.core.baseline import Baseline
from hsops.core.deadline import Deadline
from hsops.core.events import Emit, Note, ignore
from hsops.core.runs import Run
from hsops.diagnose.judge import judge
from hsops.diagnose.reading import from_probe
from hsops.diagnose.verdict import Verdict
from hsops.remote.agent import Agent

BUDGET_S = 5.0
_DEADLINE = Deadline(idle=30.0, total=30.0)


def diagnose(
    agent: Agent,
    run: Run | None,
    *,
    server: str | None = None,
    port: int | None = None,
    dumps: str | None = None,
    tp: int | None = None,
    baseline: Baseline | None = None,
    emit: Emit = ignore,
) -> Verdict:
    """Look at a run on its host, for about three seconds, and say what is the matter.

    Args:
        run: the run; None looks for a server on ``port`` that hsops did not start.
        server: its name, when there is no run: for the record of its good runs.
        dumps: the folder whose free space matters.
        tp: ranks to expect when there is no run.
        baseline: good runs of the same server; None takes those that the host remembers.

    Raises:
        UnreachableError, RemoteError: the host or its agent cannot be asked.
    """
    raw = probe(agent, run, server=server, port=port, dumps=dumps, tp=tp, emit=emit)
    return judge(from_probe(raw, host=agent.host.name, run=run, tp=tp, baseline=baseline))


def probe(
    agent: Agent,
    run: Run | None,
    *,
    server: str | None = None,
    port: int | None = None,
    dumps: str | None = None,
    tp: int | None = None,
    emit: Emit = ignore,
) -> dict[str, Any]:
    """The raw evidence, as the agent sends it: JSON values, for ``from_probe`` or for keeping."""
    emit(Note("looking: processes, log, port, stacks, system calls", host=agent.host.name))
    asked: dict[str, Any] = {"budget_s": BUDGET_S, "port": port, "tp": tp, "dumps": dumps, "server": server}
    if run:
        asked |= {"run": run.id, "port": run.port, "log": run.log, "tp": run.tp, "dumps": run.dump_dir or dumps}
        asked |= {"pid": run.pid, "server": run.server}
    return agent.call("probe", deadline=_DEADLINE, **asked)
