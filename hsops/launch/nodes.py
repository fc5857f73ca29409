"""What the nodes of a run tell, each for itself, as what the whole tells. Pure; a run on one host passes through."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hsops.core.log_nodes import joined
from hsops.core.log_summary import LogSummary
from hsops.core.milestones import LogReader
from hsops.core.nodes import whole
from hsops.core.runs import Hello, Run
from hsops.launch.vitals import Vitals


class Nodes:
    """The latest of each node.

    Args:
        run: the run, or the whole of one over several hosts.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._hosts = run, tuple(part.host for part in run.parts)
        self._runs: dict[int, Run] = {}
        self._readers = [self._reader() for _ in self._hosts or ("",)]
        self._vitals: dict[int, Vitals] = {}
        self.away: set[int] = set()
        """Nodes whose links are lost."""

    def _reader(self) -> LogReader:
        return LogReader(tp=self._run.tp, sglang=self._run.sglang)

    def told(self, node: int, run: Run) -> Run:
        """Its part of the run is so now: the run."""
        self.away.discard(node)
        self._runs[node] = run
        return self._whole()

    def _whole(self) -> Run:
        if not self._hosts:
            return self._runs[0]
        if 0 not in self._runs:
            return self._run  # what it was when the watch began: the first node says what counts
        found = whole({self._hosts[node]: run for node, run in self._runs.items()})
        assert found
        return found

    def hellos(self, node: int, hellos: tuple[Hello, ...]) -> tuple[Hello, ...]:
        """These say hello on a node: all that do."""
        if node in self._runs:
            self._runs[node] = replace(self._runs[node], hellos=hellos)
        if not self._hosts:
            return hellos
        return tuple(said for _, run in sorted(self._runs.items()) for said in run.hellos)

    def read(self, node: int, data: bytes) -> LogSummary:
        """Some of its log: what all logs tell."""
        self._readers[node].feed(data)
        return self.summary()

    def forget(self, node: int) -> LogSummary:
        """Its log begins anew."""
        self._readers[node] = self._reader()
        return self.summary()

    def summary(self) -> LogSummary:
        """What all logs tell."""
        return joined([reader.summary() for reader in self._readers], self._hosts)

    def vitals(self, node: int, vitals: Vitals) -> Vitals:
        """One look at a node: at all of them, by the first one's clock."""
        self._vitals[node] = vitals
        return _sum([seen for _, seen in sorted(self._vitals.items())])

    def lost(self, node: int) -> str:
        """Its link is; its host."""
        self.away.add(node)
        return self._hosts[node]


def _sum(all_: list[Vitals]) -> Vitals:
    head = all_[0]
    if len(all_) == 1:
        return head
    return replace(
        head,
        read=sum(one.read for one in all_),
        cached=sum(one.cached for one in all_),
        majflt=sum(one.majflt for one in all_),
        rss=sum(one.rss for one in all_),
        gpu_mib=_known(one.gpu_mib for one in all_),
        compilers=tuple(compiler for one in all_ for compiler in one.compilers),
        jit=(sum(one.jit[0] for one in all_), next((one.jit[1] for one in all_ if one.jit[1]), "")),
        functions={rank: stack for one in all_ for rank, stack in one.functions.items()},
        ranks={rank: seen for one in all_ for rank, seen in one.ranks.items()},
    )


def _known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
