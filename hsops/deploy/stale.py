"""Servers that run on with code that is not there any more: code is read when a server starts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hsops.core.deadline import QUICK
from hsops.deploy.planned import Plan
from hsops.remote.agent import Agent, Question


@dataclass(frozen=True, slots=True)
class StaleRun:
    """A server that has other code loaded than lies there.

    Args:
        run, server: its run's id, its name in the inventory; both may be empty of one with a pid.
        patch: whose files changed.
        identity: the version of the patch that it has loaded; empty: it was launched without the patch in its list, and
            reads those files all the same.
        pid: of a server that is no run of this state folder; None: it is one.
    """

    run: str
    server: str
    patch: str
    identity: str
    pid: int | None = None

    def __str__(self) -> str:
        if self.pid is not None:
            whose = (
                f"of run {self.run}, which is another state_dir's or has ended" if self.run else "not started by hsops"
            )
            return f"process {self.pid} ({whose}) still runs the files from before {self.patch} changed; start it again"
        what = f"{self.patch} {self.identity}" if self.identity else f"the files from before {self.patch} changed"
        return f"run {self.run} of {self.server} still runs {what}; relaunch: hsops launch {self.server} --replace"


def stale_runs(agent: Agent, plan: Plan, *, revert: bool) -> tuple[StaleRun, ...]:
    """Servers that run with other code than ``plan`` leaves there, done or not."""
    verb, params = loaded_below(plan.place, plan.seen.root)
    runs = agent.call(verb, deadline=QUICK, **params)["runs"]
    return judge(runs, plan.patch, "" if revert else plan.identity, math.inf if plan.actions else plan.seen.applied)


def loaded_below(place: str, root: str) -> Question:
    """What asks the agent for the running servers, and whether they read files of a place whose folder is ``root``."""
    return "run-list", {"loaded": place if place == "source" else root}


def judge(runs: Iterable[Mapping[str, Any]], patch: str, identity: str, since: float) -> tuple[StaleRun, ...]:
    """Which of the running servers are stale.

    Args:
        runs: as the agent's ``runs.loaded`` tells them.
        patch, identity: what lies there now; empty: not applied.
        since: when its files last changed, by the host's clock; infinite: just now; 0: not known.
    """
    found = []
    for run in runs:
        held = (run["patches"] or {}).get(patch)
        older = run["reads"] and (run["created"] or 0.0) < since
        if older if held is None else held != identity:
            found.append(StaleRun(run["id"], run["server"], patch, held or "", run.get("pid")))
    return tuple(found)
