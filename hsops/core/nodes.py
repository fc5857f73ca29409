"""A run over several hosts: one launch, one id, a part on each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hsops.core.runs import Exit, Node, Part, Run

UNKNOWN, ABSENT, LOST = "unknown", "absent", "lost"


def shares(hosts: tuple[str, ...], tp: int) -> tuple[Node | None, ...]:
    """The node of each host: as many ranks on each, in order; None for a server on one host."""
    if len(hosts) == 1:
        return (None,)
    each = tp // len(hosts)
    return tuple(Node(rank, len(hosts), hosts, rank * each, each) for rank in range(len(hosts)))


def whole(parts: Mapping[str, Run | None]) -> Run | None:
    """The run that the parts on several hosts are; a run on one host as it is.

    What the first node says counts for all: it answers, and ends last. A part that ended shows among the helpers, as
    ``node 1 on b``; so ``dead`` names it. A run of which the first host has nothing is lost, whatever the others run.

    Args:
        parts: host -> what is there of one run; a host that is not named was not asked, None: has nothing of it.
    """
    there = {found.node.rank: found for found in parts.values() if found and found.node}
    if not there:
        return next(filter(None, parts.values()), None)
    head = there[min(there)]
    assert head.node
    told = tuple(_part(head.node, rank, host, there.get(rank), parts) for rank, host in enumerate(head.node.hosts))
    runs = [there[rank] for rank in sorted(there)]
    helpers = {
        **head.helpers,
        **{f"node {p.rank} on {p.host}": _end(there[p.rank]) for p in told[1:] if p.rank in there},
    }
    headless = told[0].phase == ABSENT
    return replace(
        head,
        node=None,
        parts=told,
        phase=head.phase if 0 in there else LOST if headless else UNKNOWN,
        ranks=_ordered(run.ranks for run in runs),
        rank_pids={name: pid for run in reversed(runs) for name, pid in run.rank_pids.items()},
        helpers=helpers,
        hellos=tuple(said for run in runs for said in run.hellos),
        left=() if head.alive and not headless else tuple(pid for run in runs for pid in _pids(run)),
    )


def together(found: Mapping[str, Iterable[Run]]) -> tuple[Run, ...]:
    """The runs of a server, newest first, each whole.

    Args:
        found: host -> its runs; all of the server's hosts that could be asked.
    """
    by_id: dict[str, dict[str, Run | None]] = {}
    for host, runs in found.items():
        for run in runs:
            by_id.setdefault(run.id, dict.fromkeys(found))[host] = run
    joined = [one for parts in by_id.values() if (one := whole(parts))]
    return tuple(sorted(joined, key=lambda run: (run.started, run.id), reverse=True))


def absent(run: Run) -> tuple[str, ...]:
    """The hosts of a run over several that have nothing of it, of those that were asked."""
    return tuple(part.host for part in run.parts if part.phase == ABSENT)


def elsewhere(run: Run, hosts: Iterable[str]) -> tuple[str, ...]:
    """The hosts of a run, or of a part of one, beside ``hosts``, which were asked."""
    if run.node:
        return tuple(host for host in run.node.hosts if host not in {*hosts, run.node.host})
    return tuple(part.host for part in run.parts if part.phase == UNKNOWN)


def _part(node: Node, rank: int, host: str, run: Run | None, parts: Mapping[str, Run | None]) -> Part:
    own = replace(node, rank=rank, first=rank * node.ranks).own
    if run is None or run.node is None:
        return Part(host, rank, own, ABSENT if host in parts else UNKNOWN)
    return Part(host, rank, own, run.phase, run.pid, run.exit, run.directory, run.log, run.left)


def _pids(run: Run) -> tuple[int, ...]:
    """What is there of a part whose server has ended."""
    return (run.pid, *run.rank_pids.values()) if run.alive else run.left


def _end(run: Run) -> Exit | None:
    """How a part ended; one that is lost ended at a time that nobody knows."""
    return run.exit or (None if run.alive else Exit(None, "", oom=False, time=run.started + run.uptime_s))


def _ordered(groups: Iterable[Mapping[str, Exit | None]]) -> dict[str, Exit | None]:
    found = {name: end for group in groups for name, end in group.items()}
    return dict(sorted(found.items(), key=lambda pair: (len(pair[0]), pair[0])))
