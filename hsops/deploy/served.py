"""Whether the models that a host is to serve have a shape that can be captured: asked before anything is changed."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace

from hsops.core.deadline import QUICK
from hsops.core.errors import UnsupportedError
from hsops.deploy.models import Sources
from hsops.deploy.planned import Plan
from hsops.payload.hsops_hs_dump.strategy import LAST
from hsops.payload.hsops_hs_dump.wiring import DRAFT
from hsops.remote.agent import Agent


def checked(plan: Plan, agent: Agent, models: Mapping[str, str], *, force: bool) -> Plan:
    """The plan, with a warning for each model of which nothing can be told.

    Args:
        models: server -> its model, a path on the host or a hub id (of which nothing can be told before launch).
        force: a model of an unknown shape is a warning too.

    Raises:
        UnsupportedError: SGLang's code for a model has no shape that is known.
    """
    warnings = []
    for server, model in models.items():
        said, known = _judge(agent, server, model)
        if not known and not force:
            raise UnsupportedError(
                f"SGLang {plan.sglang}: {said}",
                host=agent.host.name,
                why="its states could not be told from others; nothing was changed",
                fix=f"which models of which SGLang (up to {LAST}) are captured: docs/reference/models.md; "
                "--force deploys all the same, and the ranks say at launch what they find",
            )
        warnings += [said] if said else []
    return replace(plan, warnings=(*plan.warnings, *warnings)) if warnings else plan


def _judge(agent: Agent, server: str, model: str) -> tuple[str, bool]:
    """What there is to say of a server's model (may be nothing), and whether it is fine as far as can be told."""
    told = agent.call("model-read", deadline=QUICK, path=model, modules=True)
    if not (architectures := told["architectures"]):
        return "", True
    sources = Sources(lambda wanted: _read(agent, wanted))
    paths = [f"{module.replace('.', '/')}.py" for module in told["modules"]]
    known = [(name, path) for name in architectures for path in paths if name in sources.classes(path)]
    if not known:
        return f"{server}: SGLang has no model class {' or '.join(architectures)}; the ranks say what they find", True
    name, path = known[0]
    if DRAFT.search(name):
        return f"{server}: {name} is a draft model", False
    found = [sources.trunk(*trunk) for trunk in sources.trunks(path, name)]
    if any(trunk.choice.strategy for trunk in found):
        return "", True
    if not found:
        return f"{server}: {name} ({path}) has no part with layers and a forward that takes forward_batch", False
    missing = "; ".join(f"{trunk.name} ({trunk.path}): not found: {trunk.choice.missing}" for trunk in found)
    return f"{server}: {name} has a shape that is not known: {missing}", False


def _read(agent: Agent, path: str) -> str | None:
    told = agent.call("patch-inspect", deadline=QUICK, patches=[], read=[path])["files"][path]
    return base64.b64decode(told["content_b64"]).decode(errors="replace") if told else None
