"""Ask the agent for evidence."""

from __future__ import annotations

from typing import Any

from hsops.core.deadline import Deadline
from hsops.core.events import Emit, Note, ignore
from hsops.core.runs import Run
from hsops.remote.agent import Agent

BUDGET_S = 5.0
PATIENT_BUDGET_S = 20.0  # where the host had no time for the looks that decide
_DEADLINE = Deadline(idle=60.0, total=60.0)
_DECISIVE = ("stacks", "strace")


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
    """Look at a run on its host for about three seconds: the raw evidence, to judge (``from_probe``) or to keep.

    On a host whose cores are all taken a look may not come to its end in time; then everything is looked at once more,
    for up to 20 s.

    Args:
        run: the run; None looks for a server on ``port`` that hsops did not start.
        server: its name, when there is no run: for the record of its good runs.
        dumps: the folder whose free space matters.
        tp: ranks to expect when there is no run.

    Raises:
        UnreachableError, RemoteError: the host or its agent cannot be asked.
    """
    emit(Note("looking: processes, log, port, stacks, system calls", host=agent.host.name))
    asked: dict[str, Any] = {"budget_s": BUDGET_S, "port": port, "tp": tp, "dumps": dumps, "server": server}
    if run:
        asked |= {"run": run.id, "port": run.port, "log": run.log, "tp": run.tp, "dumps": run.dump_dir or dumps}
        asked |= {"pid": run.pid, "server": run.server, "since": run.started}
    shut = bool(run and run.job and run.job.suspended)  # nobody gets in; that it is, is what there is to tell
    where = agent.at(run) if run and not shut else agent
    if run and run.job and where is agent:  # what had this pid and this port was on another host
        asked |= {"pid": None, "port": None}
    agent = where
    found = agent.call("probe", deadline=_DEADLINE, **asked)
    if not _too_short(found):
        return found
    emit(Note("the host is too busy for a quick look: once more, for up to 20 s", host=agent.host.name))
    return agent.call("probe", deadline=_DEADLINE, **asked | {"budget_s": PATIENT_BUDGET_S})


def _too_short(raw: dict[str, Any]) -> bool:
    return any(b["probe"] in _DECISIVE and b["why"] == "timed-out" for b in raw.get("could_not", ()))
