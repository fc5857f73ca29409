"""Look at a host, and judge: facts in, findings out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from hsops.core.deadline import Deadline
from hsops.core.errors import RemoteError
from hsops.core.partitions import SINFO
from hsops.doctor import rules_gpu, rules_host, rules_slurm
from hsops.doctor.findings import Facts, Finding, Wanted
from hsops.remote.agent import Agent
from hsops.remote.runs import read_baseline

_DEADLINE = Deadline(idle=30.0, total=30.0)
_QUIET = ("not-found", "not-needed")
_EXPLAINED = ("gpus", "cuda", "peers", "holders", "slurm ")  # one sentence about a tool is enough

RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    rules_host.python,
    rules_host.capture,
    rules_slurm.client,
    rules_slurm.asked,
    rules_gpu.present,
    rules_gpu.driver,
    rules_gpu.memory_held,
    rules_gpu.wedged,
    rules_gpu.faults,
    rules_gpu.link,
    rules_gpu.power_saving,
    rules_gpu.peers,
    rules_host.models,
    rules_host.ports,
    rules_host.strangers,
    rules_host.orphans,
    rules_host.room,
    rules_host.put_aside,
    rules_host.state,
    rules_host.limits,
    rules_host.insight,
    rules_host.clock,
    rules_slurm.accounting,
)


def look(agent: Agent, servers: Sequence[Wanted], dumps: str) -> tuple[Facts, float]:
    """The facts of a host, and the seconds that one round trip takes.

    Args:
        agent: of the host.
        servers: of the inventory that are to run there.
        dumps: the folder of hidden states.

    Raises:
        UnreachableError, RemoteError: the host cannot be reached, or its Python cannot be used.
    """
    asked = [{"name": s.name, "model": s.model, "port": s.port} for s in servers]
    jobs = [server.job for server in servers if server.job]
    folders = sorted({job.slurm.bin or "" for job in jobs})
    raw = agent.call("doctor", deadline=_DEADLINE, dumps=dumps, servers=asked, slurm=folders, sinfo=list(SINFO))
    if raw["hello"] is None:  # its site-packages hang, say: nothing else would mean anything
        why = next((one["message"] for one in raw["could_not"] if one["look"] == "hello"), "")
        raise RemoteError("the host does not tell what its Python has", host=agent.host.name, why=why)
    began = time.monotonic()
    now = agent.call("clock", deadline=_DEADLINE)["time"]
    took = time.monotonic() - began
    usual = {job.name: read_baseline(agent, job.name).seconds for job in jobs}
    return Facts(raw, servers, dumps, skew_s=now - (time.time() - took / 2), usual_s=usual), took


def judge(facts: Facts) -> list[Finding]:
    """What is not as it should be: blockers, then warnings, then what could not be looked at."""
    skipped = rules_gpu.__name__ if facts.login_node else ""  # the GPUs that matter are of other hosts
    found = [finding for rule in RULES if rule.__module__ != skipped for finding in rule(facts)]
    found += [
        Finding("note", "look", f"no look at {blind['look']}: {blind['message']}")
        for blind in facts.raw["could_not"]
        if blind["why"] not in _QUIET and not blind["look"].startswith(_EXPLAINED)
    ]
    if facts.login_node:
        found.append(Finding("note", "gpu", "its servers are jobs of Slurm: nothing is known of their nodes' GPUs"))
    elif not facts.gpus and (blind := facts.blind("gpus")) and blind["why"] == "not-found":
        found.append(Finding("note", "gpu", "no nvidia-smi here: nothing is known of GPUs"))
    return sorted(found, key=lambda finding: ("blocker", "warning", "note").index(finding.level))
