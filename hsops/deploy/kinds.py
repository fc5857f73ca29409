"""The user's own patches on a host: look, plan. The I/O around ``parts``, ``edits`` and ``plan_edits``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hsops.core.errors import UnsupportedError
from hsops.core.inventory import HsDumpPatch, PatchSpec
from hsops.core.units import counted
from hsops.deploy import do, edits, parts, plan_edits
from hsops.deploy.edits import Made
from hsops.deploy.facts import Facts
from hsops.deploy.parts import DiffParts, FilesParts, MakeFault, ScriptParts
from hsops.deploy.planned import Plan
from hsops.remote.agent import Agent
from hsops.remote.lock import Lock


@dataclass(frozen=True, slots=True)
class Local:
    """Where the patches' own files are: the inventory's folder, and what makes a fault of a path in it."""

    base: Path
    fault: MakeFault


def plan(lock: Lock, patch: PatchSpec, local: Local, *, force: bool, scripts: bool = True) -> Plan:
    """How to get a patch of any kind but hs-dump onto a host, whose ``lock`` only a script takes.

    Args:
        scripts: run a script, on a copy; else its plan is ``untried``.

    Raises:
        ConfigError: what the inventory names is not there or not what it should be.
        HsopsError: see ``edits`` and ``plan_edits.plan``.
    """
    wanted = parts.read(patch, local.base, local.fault)
    facts = do.look_recorded(lock.agent, patch.name, wanted.place, _paths(wanted))
    if facts.recorded.state == "applied" and facts.recorded.identity == wanted.identity:
        return plan_edits.plan(facts, wanted, Made(()))
    if isinstance(wanted, ScriptParts) and not scripts:
        return replace(plan_edits.plan(facts, wanted, Made(()), force=force), actions=(), untried=True)
    return plan_edits.plan(facts, wanted, _made(lock, wanted, facts), force=force)


def status(agent: Agent, patch: PatchSpec, local: Local) -> Plan:
    """How it stands."""
    wanted = parts.read(patch, local.base, local.fault)
    facts = do.look_recorded(agent, patch.name, wanted.place, _paths(wanted))
    return plan_edits.status(facts, wanted, _told(wanted, facts) if facts.recorded.state == "absent" else None)


def reverts(agent: Agent, name: str, patch: PatchSpec | None, *, force: bool) -> list[Plan]:
    """How to take it out wherever it is; empty when it is none of these kinds.

    Args:
        patch: the inventory's entry; None: there is none any more, and the host's record tells.
    """
    if isinstance(patch, HsDumpPatch):
        return []
    place = patch.place if patch else "site"
    first = do.look_recorded(agent, name, place)
    kind = patch.kind if patch else str(first.recorded.options.get("kind", ""))
    found = [plan_edits.plan_revert(first, name, place, kind, force=force)] if first.recorded.files else []
    found += _elsewhere(agent, name, first, force=force)
    return found or ([plan_edits.plan_revert(first, name, place, kind, force=force)] if patch else [])


def _elsewhere(agent: Agent, name: str, first: Facts, *, force: bool) -> Iterator[Plan]:
    for place in first.places:
        if place != first.root:
            there = do.look_recorded(agent, name, place)
            if kind := there.recorded.options.get("kind"):
                yield plan_edits.plan_revert(there, name, place, str(kind), force=force)


def _paths(wanted: DiffParts | FilesParts | ScriptParts) -> list[str]:
    if isinstance(wanted, DiffParts):
        return wanted.paths
    return list(wanted.files) if isinstance(wanted, FilesParts) else list(wanted.spec.files)


def _made(lock: Lock, wanted: DiffParts | FilesParts | ScriptParts, facts: Facts) -> Made:
    if isinstance(wanted, ScriptParts):
        return _rehearsed(lock, wanted, facts)
    return edits.of_diff(wanted, facts) if isinstance(wanted, DiffParts) else edits.of_files(wanted, facts)


def _rehearsed(lock: Lock, wanted: ScriptParts, facts: Facts) -> Made:
    """Run the script on the host, on a copy."""
    found = do.rehearse(lock, wanted)
    left = counted(found.ended, "process")
    notes = [f"{wanted.label} left {left} behind, ended by hsops"] if found.ended else []
    made = edits.of_script(wanted, facts, found.files)
    return replace(made, notes=(*made.notes, *notes))


def _told(wanted: DiffParts | FilesParts | ScriptParts, facts: Facts) -> Made | None:
    """What it would come to, where that can be told by looking; None: it does not fit, or it cannot."""
    if isinstance(wanted, ScriptParts):
        return None
    try:
        return edits.of_diff(wanted, facts) if isinstance(wanted, DiffParts) else edits.of_files(wanted, facts)
    except UnsupportedError:
        return None
