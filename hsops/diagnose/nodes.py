"""What was seen on several hosts of one server, as the evidence of one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from hsops.core.log_nodes import joined
from hsops.core.nodes import UNKNOWN, whole
from hsops.core.runs import Run
from hsops.diagnose.evidence import Evidence, Log


def merged(parts: Sequence[Evidence], runs: Mapping[str, Run | None], lost: Mapping[str, str]) -> Evidence:
    """One server's.

    Args:
        parts: of each host that could be asked, by node rank.
        runs: host -> its part of the run, None: it has none; the same hosts.
        lost: host -> why it could not be asked.
    """
    head = parts[0]
    run = whole(runs)
    alone = run is not None and run.parts and run.parts[0].phase == UNKNOWN
    return replace(
        head,
        run=run,
        hosts=tuple(one.host for one in parts),
        lost=dict(lost),
        processes=tuple(replace(process, host=one.host) for one in parts for process in one.processes),
        log=_log([one.log for one in parts], [one.host for one in parts]),
        port=None if alone else head.port,
        gpus=tuple(replace(gpu, host=one.host) for one in parts for gpu in one.gpus),
        gpu_apps=tuple(replace(app, host=one.host) for one in parts for app in one.gpu_apps),
        oom=_told(parts, lambda one: one.oom),
        xid=_told(parts, lambda one: one.xid),
        oom_kills=sum(counts) if (counts := [one.oom_kills for one in parts if one.oom_kills is not None]) else None,
        could_not=tuple(
            replace(blind, message=f"{one.host}: {blind.message}") for one in parts for blind in one.could_not
        ),
        took_s=max(one.took_s for one in parts),
        spent={name: max(one.spent.get(name, 0.0) for one in parts) for one in parts for name in one.spent},
        cpu_s=sum(cpu) if (cpu := [one.cpu_s for one in parts if one.cpu_s is not None]) else None,
        held=_told(parts, lambda one: one.held),
    )


def _told(parts: Sequence[Evidence], lines: Callable[[Evidence], Iterable[str]]) -> tuple[str, ...]:
    return tuple(f"{one.host}: {line}" for one in parts for line in lines(one))


def _log(logs: Sequence[Log | None], hosts: Sequence[str]) -> Log | None:
    """The first node's; it counts what the others add, and their words come before its own, whose end is the end."""
    there = [(log, host) for log, host in zip(logs, hosts, strict=True) if log]
    if not there:
        return None
    head, others = there[0][0], [log for log, _ in there[1:]]
    silences = [log.silent_s for log, _ in there if log.silent_s is not None]
    return replace(
        head,
        summary=joined([log.summary for log, _ in there], [host for _, host in there]),
        text="\n".join([*(log.text for log in others), head.text]),
        silent_s=min(silences) if silences else None,
        grew=sum(log.grew for log, _ in there),
    )
