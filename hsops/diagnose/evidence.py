"""Everything the probes saw of one run, as values with properties that interpret them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hsops.core.baseline import Baseline
from hsops.core.milestones import LogSummary
from hsops.core.runs import Exit, Run
from hsops.diagnose import kernel
from hsops.diagnose.gpus import Gpu, GpuApp, used
from hsops.diagnose.processes import Process
from hsops.diagnose.ras import Ras
from hsops.diagnose.stacks import Merged, merge

_ALONE_S = 0.5  # SGLang ends eight ranks within 0.3 s, seen on two cores at load 16


@dataclass(frozen=True, slots=True)
class Log:
    """The server's log.

    Args:
        path: on the host, or the file given.
        summary: of its beginning and end (a very long middle is left out).
        text: the same, for rules that look for words.
        lines: of the whole file; ``answers``: how many of those seen only answer health probes.
        silent_s: seconds since the last line that is not an answer to a health probe; None when it cannot be told.
        waited_s: how long the log itself shows health probes after that line: the silence it proves.
        news: the last lines that are not answers to health probes.
        grew: bytes written while the probes ran.
    """

    path: str
    summary: LogSummary
    text: str
    lines: int
    answers: int
    silent_s: float | None
    waited_s: float
    news: tuple[str, ...]
    grew: int


@dataclass(frozen=True, slots=True)
class Answer:
    """To one HTTP request: ``status``, or ``error``: ``refused``, ``timeout`` or another word."""

    status: int | None
    error: str
    took_s: float

    def __str__(self) -> str:
        return str(self.status) if self.status else self.error


@dataclass(frozen=True, slots=True)
class Port:
    """The server's port.

    Args:
        open: somebody listens; ``holder``: who, None where it may not be seen.
        health, model_info: what it answered; None when it was not asked.
        clients: connections of others that stayed open while the probes looked.
    """

    number: int
    open: bool
    holder: int | None
    health: Answer | None
    model_info: Answer | None
    clients: int = 0


@dataclass(frozen=True, slots=True)
class Blind:
    """A look that was not possible; ``why``: not-found, not-permitted, timed-out, not-needed or failed."""

    probe: str
    why: str
    message: str


@dataclass(frozen=True)
class Evidence:
    """What there is to judge by.

    Args:
        live: processes and port were looked at; False for a log alone.
        host: its name in the inventory; empty for a log alone.
        run: the run's record; None for a server that hsops did not start, or a log alone.
        tp: ranks to expect.
        gpu_apps: who holds GPU memory; empty where the driver does not tell, as in most containers.
        visible: CUDA_VISIBLE_DEVICES, "" where it is not set; None when unknown.
        ras: NCCL's own view of its ranks; None where it does not answer.
        oom: what the kernel's log says of processes that the OOM killer ended since the run began, whosever they were.
        xid: what it says of GPU faults.
        oom_kills: how often it struck since boot; None when unknown.
        free, writable: of the dump folder; None when there is none.
        took_s: how long the probes took.
        unmoved_s: for how long a watch over the launch had seen no sign of work (log, reads, faults, memory, compilers,
            caches, functions) when it asked, past twice what good runs took for the step; 0 without such a watch.
        spent: seconds of looks that took some; cpu_s: CPU seconds that all of them took, None when unknown.
        held: threads that are traced or stopped after the looks and were not before.
        allowed_s: how long that watch allows; also where no good run vouches for the step. 0: there is none.
        hosts: of a server over several, those that were looked at, by node rank; ``host`` is the first. Empty: one.
        lost: of the same, host -> why it could not be asked.
    """

    live: bool
    host: str = ""
    run: Run | None = None
    tp: int = 1
    processes: tuple[Process, ...] = ()
    log: Log | None = None
    port: Port | None = None
    gpus: tuple[Gpu, ...] = ()
    gpu_apps: tuple[GpuApp, ...] = ()
    visible: str | None = None
    ras: Ras | None = None
    oom: tuple[str, ...] = ()
    xid: tuple[str, ...] = ()
    oom_kills: int | None = None
    dumps: str = ""
    free: int | None = None
    writable: bool | None = None
    could_not: tuple[Blind, ...] = ()
    baseline: Baseline | None = None
    took_s: float = 0.0
    unmoved_s: float = 0.0
    spent: Mapping[str, float] = field(default_factory=dict)
    cpu_s: float | None = None
    held: tuple[str, ...] = ()
    allowed_s: float = 0.0
    hosts: tuple[str, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def ranks(self) -> Mapping[int, Process]:
        """The schedulers that live, by rank."""
        found = {p.rank: p for p in self.processes if p.role == "scheduler" and not p.dead and p.rank is not None}
        return dict(sorted(found.items()))

    @cached_property
    def launcher(self) -> Process | None:
        """``launch_server``, when it lives."""
        return self._living("launcher")

    @cached_property
    def detokenizer(self) -> Process | None:
        """The detokenizer, when it lives."""
        return self._living("detokenizer")

    @property
    def alive(self) -> bool:
        """The server's main process is there."""
        return self.launcher is not None

    @cached_property
    def dead(self) -> tuple[Process, ...]:
        """Schedulers that ended and were not collected."""
        return tuple(p for p in self.processes if p.role == "scheduler" and p.dead)

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Ranks that are not there although ranks have been seen: in the log, or as dead processes.

        Of a server on several nodes only some ranks are here, so none is missed.
        """
        if self.several_nodes or self.unnamed:
            return ()
        seen = bool(self.dead) or (self.log is not None and "distributed-begin" in self.log.summary.reached)
        return tuple(r for r in range(self.tp) if r not in self.ranks) if seen else ()

    @property
    def several_nodes(self) -> bool:
        """The server is on other hosts too, which were not looked at."""
        nodes = self.log.summary.args.get("nnodes", "1") if self.log else "1"
        return nodes not in ("1", str(len(self.hosts)))

    def host_of(self, rank: int | None) -> str:
        """Where a rank is; the only or first host for None."""
        named = f"TP{rank}"
        there = next((part.host for part in (self.run.parts if self.run else ()) if named in part.ranks), "")
        return there or next((p.host for p in self.processes if p.label.split(" ")[0] == named), "") or self.host

    @property
    def unnamed(self) -> bool:
        """A child has no title yet: it may be whoever seems to be missing, who sets it after its imports."""
        return any(p.role == "child" and not p.dead for p in self.processes)

    def was_seen(self, role: str) -> bool:
        """The run's supervisor saw who had this title, and its process is not there any more."""
        pid = self.run.rank_pids.get(role) if self.run else None
        return pid is not None and pid not in {p.pid for p in self.processes if not p.dead}

    @cached_property
    def ends(self) -> tuple[tuple[int, Exit], ...]:
        """Each rank that the supervisor saw end and how, the first one first; of data-parallel copies the first."""
        seen = self.run.ranks.items() if self.run else ()
        order = sorted(((end.time, _rank(name), end) for name, end in seen if end), key=lambda one: one[:2])
        first = {rank: end for _, rank, end in reversed(order)}
        return tuple(sorted(first.items(), key=lambda pair: (pair[1].time, pair[0])))

    @property
    def gone_alone(self) -> int | None:
        """The rank that ended well before any other: not one of those that were taken along."""
        times = [end.time for _, end in self.ends]
        alone = len(times) == 1 or (len(times) > 1 and times[1] - times[0] >= _ALONE_S)
        return self.ends[0][0] if alone else None

    @property
    def health(self) -> Answer | None:
        """What /health said."""
        return self.port.health if self.port else None

    @property
    def healthy(self) -> bool:
        """/health said 200, and it was this server who said it."""
        return bool(self.health and self.health.status == 200) and not self.strange_listener

    @property
    def strange_listener(self) -> int | None:
        """The pid of somebody else who has the port of this server, of which something is known."""
        holder = self.port.holder if self.port else None
        return holder if (self.alive or self.run) and holder not in {p.pid for p in self.processes} else None

    @property
    def ready(self) -> bool:
        """The log says that the server was ready once."""
        return self.log is not None and self.log.summary.ready

    @property
    def silent_s(self) -> float:
        """Seconds without news in the log; 0 when unknown."""
        return (self.log.silent_s or 0.0) if self.log else 0.0

    @cached_property
    def merged(self) -> Merged | None:
        """The ranks' working threads laid over each other."""
        return merge({rank: p.stack for rank, p in self.ranks.items() if p.stack})

    @cached_property
    def compilers(self) -> tuple[str, ...]:
        """Names of compilers that run in the server's tree."""
        return tuple(sorted({p.name for p in self.processes if p.role == "compiler" and not p.dead}))

    @cached_property
    def used_gpus(self) -> tuple[int, ...]:
        """Indices of the GPUs that this server uses, as its arguments and CUDA_VISIBLE_DEVICES tell."""
        args = self.log.summary.args if self.log else {}
        there = {gpu.index for gpu in self.gpus}
        return tuple(i for i in used(args, self.tp, self.visible or "") if i in there or not there)

    @cached_property
    def own_gpus(self) -> tuple[Gpu, ...]:
        """GPUs on which nobody else works: a neighbour's load says nothing about this server.

        Nor does a GPU that it does not use, where it is known which those are.
        """
        ours = {(p.host, p.pid) for p in self.processes}
        shared = {(app.host, app.gpu) for app in self.gpu_apps if (app.host, app.pid) not in ours}
        ours_only = self.used_gpus if self.visible is not None else ()
        return tuple(
            gpu
            for gpu in self.gpus
            if (gpu.host, gpu.index) not in shared and (not ours_only or gpu.index in ours_only)
        )

    @cached_property
    def own_oom(self) -> tuple[str, ...]:
        """OOM kills of this run's processes; by SGLang's name only where a rank is gone whose pid nobody has seen."""
        seen = self.run.rank_pids if self.run else {}
        gone = (self.run.pid, *seen.values()) if self.run else ()
        whole = all(f"TP{rank}" in seen or rank in self.ranks for rank in range(self.tp))
        return tuple(kernel.kills(self.oom, {*(p.pid for p in self.processes), *gone}, whole=whole))

    @cached_property
    def own_xid(self) -> tuple[str, ...]:
        """GPU faults, but for those of GPUs that this server does not use, where it is known which those are."""
        ours = self.used_gpus if self.visible is not None and not self.hosts else ()
        others = [gpu.bus for gpu in self.gpus if gpu.bus and ours and gpu.index not in ours]
        return tuple(kernel.faults(self.xid, others))

    @property
    def gpus_spin(self) -> bool:
        """Every GPU that is this server's alone waits for a peer."""
        return bool(self.own_gpus) and all(gpu.spins for gpu in self.own_gpus)

    def blind(self, probe: str) -> Blind | None:
        """Why a probe could not look."""
        return next((b for b in self.could_not if b.probe == probe), None)

    def _living(self, role: str) -> Process | None:
        here = ("", self.host)  # of several nodes the first one: the others have a launcher that only starts ranks
        return next((p for p in self.processes if p.role == role and not p.dead and p.host in here), None)


def _rank(name: str) -> int:
    """``TP3``, ``DP1.TP3`` -> 3."""
    return int(name.rpartition("TP")[2])
