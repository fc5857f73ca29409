"""A run: one launched instance of a server, as its run directory on the host tells it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from hsops.core.secret import MASK, masked, value_of
from hsops.core.slurm import Job, parse_job


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: an exit code or a signal.

    Args:
        code: exit status; None when a signal ended it, or when nobody could tell how it ended.
        signal: name of the signal (``SIGKILL``); empty when it exited.
        oom: the kernel's OOM killer did it.
        time: seconds since the epoch.
    """

    code: int | None
    signal: str
    oom: bool
    time: float

    def __str__(self) -> str:
        if self.signal:
            return f"killed by {self.signal}" + (" (out of memory)" if self.oom else "")
        return "ended, nobody saw how" if self.code is None else f"exit {self.code}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a server that failed and was started again. Its log is ``server.<number>.log``.

    Args:
        number: from 1.
        started: seconds since the epoch on the host.
        exit: how the server ended.
        ranks: how its ranks and helpers did.
    """

    number: int
    started: float
    exit: Exit | None
    ranks: dict[str, Exit | None]


@dataclass(frozen=True, slots=True)
class Hello:
    """What the capture in one process says of itself. ``rank`` is None until the process knows it.

    ``strategy``, ``boundaries`` and ``final`` tell what it captures, and how.
    """

    rank: int | None
    ok: bool
    reason: str
    strategy: str = ""
    boundaries: tuple[int, ...] = ()
    final: str = ""

    @property
    def who(self) -> str:
        """``TP1``, or ``a process``."""
        return "a process" if self.rank is None else f"TP{self.rank}"


@dataclass(frozen=True, slots=True)
class Node:
    """The part of a server over several hosts that is on one of them.

    Args:
        rank: SGLang's node rank: 0 answers, and writes the dumps.
        of: how many nodes there are; ``hosts``: their names in the inventory, by rank.
        first, ranks: its first tensor-parallel rank, and how many are here.
    """

    rank: int
    of: int
    hosts: tuple[str, ...]
    first: int
    ranks: int

    @property
    def host(self) -> str:
        """Its own."""
        return self.hosts[self.rank]

    @property
    def own(self) -> tuple[str, ...]:
        """``TP2``, ``TP3``: the ranks that are here."""
        return tuple(f"TP{rank}" for rank in range(self.first, self.first + self.ranks))


@dataclass(frozen=True, slots=True)
class Part:
    """What is on one host of a run over several.

    Args:
        host, rank: of the node.
        ranks: those that are there.
        phase, pid, exit, directory, log, left: as of ``Run``; ``phase`` is ``unknown`` where the host was not asked,
            and ``absent`` where it has no such run.
    """

    host: str
    rank: int
    ranks: tuple[str, ...]
    phase: str
    pid: int = 0
    exit: Exit | None = None
    directory: str = ""
    log: str = ""
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Keys:
    """What a server's HTTP interface wants to be shown; "" for nothing.

    Args:
        api: for every request but health probes.
        admin: for those that administer it, such as aborting a request; the other key is not taken there then.
    """

    api: str = field(default="", repr=False)
    admin: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Run:
    """One launched server.

    Args:
        id: ``MMDD-HHMMSS-xxxx``.
        server: the server's name in the inventory.
        phase: ``pending`` while its job waits for a place; ``running``; ``exited`` by itself; ``stopped`` by
            ``hsops stop``; ``lost`` when the host or the supervisor died.
        pid: of ``launch_server``.
        started: seconds since the epoch on the host.
        port: the HTTP port on the host.
        tp: tensor-parallel size.
        argv: the command line, with its secrets: ``as_json`` is what may be shown.
        spec_hash: equal for equal launches; what makes a second launch a no-op.
        directory: the run directory on the host.
        log: the server's log on the host.
        dump_dir: where its ranks write dumps; empty without hs-dump.
        patches: name -> identity of what was deployed at launch.
        sglang: SGLang's version.
        exit: how it ended; None while it lives.
        ranks: ``TP0`` ... -> how that rank ended, None while it lives; a rank that was never seen is not there.
        helpers: the same for ``detokenizer`` and other processes with a title of SGLang's.
        rank_pids: ``TP0``, ``detokenizer`` ... -> pid.
        left: pids that outlived a server that has ended.
        hellos: what the capture of each process says; only with hs-dump.
        uptime_s: seconds from its start until now or its end, by the host's clock.
        attempt: how often it was started, from 1.
        attempts: those before, the first one first.
        restart_at: when it will be started again, in seconds since the epoch; None unless it waits for that.
        not_restarted: why a server with a restart policy was not started again; "" when it has none, or was.
        restarts: it has a restart policy.
        served: it has listened on its port in this attempt; only known with a restart policy.
        job: of Slurm, in which its processes are, on another host than this run directory is read on; None: no job.
        node: which part of a server over several hosts this is; None on one host, and of the whole.
        parts: of the whole of one over several hosts (``core.nodes``), by node rank.
    """

    id: str
    server: str
    phase: str
    pid: int
    started: float
    port: int
    tp: int
    argv: tuple[str, ...]
    spec_hash: str
    directory: str
    log: str
    dump_dir: str
    patches: dict[str, str]
    sglang: str
    exit: Exit | None
    ranks: dict[str, Exit | None]
    helpers: dict[str, Exit | None] = field(default_factory=dict)
    rank_pids: dict[str, int] = field(default_factory=dict)
    left: tuple[int, ...] = ()
    hellos: tuple[Hello, ...] = ()
    uptime_s: float = 0.0
    attempt: int = 1
    attempts: tuple[Attempt, ...] = ()
    restart_at: float | None = None
    not_restarted: str = ""
    restarts: bool = False
    served: bool = False
    job: Job | None = None
    node: Node | None = None
    parts: tuple[Part, ...] = ()

    def named(self, rank: str) -> str:
        """For people: ``TP3``, and of a server over several hosts ``TP3 on b``."""
        host = self.host_of(rank)
        return f"{rank} on {host}" if host else rank

    def host_of(self, who: str) -> str:
        """Where a rank is, or another process that ``dead`` names; "" on one host, which needs no telling."""
        return next((part.host for part in self.parts if who in part.ranks or who.endswith(f" on {part.host}")), "")

    @property
    def keys(self) -> Keys:
        """What its HTTP interface wants to be shown; of a key that only its file knew, when that is gone: nothing."""
        known = (value_of(self.argv, flag) for flag in ("--api-key", "--admin-api-key"))
        return Keys(*("" if key == MASK else key for key in known))

    def as_json(self) -> dict[str, Any]:
        """The run for ``--json``: without secrets."""
        return {**asdict(self), "argv": masked(self.argv)}

    @property
    def alive(self) -> bool:
        """The server's process is there, or its job waits to start it."""
        return self.phase in ("running", "pending")

    @property
    def pending(self) -> bool:
        """Its job waits, for the first time or to be started again."""
        return self.phase == "pending"

    @property
    def capture_fault(self) -> str:
        """Why rows would be missing from the dumps: a rank that refuses or has said nothing; "" when all is well."""
        if not self.dump_dir:
            return ""
        refusing = [said for said in self.hellos if not said.ok]
        if refusing:
            reason = refusing[0].reason
            same = [said.who for said in refusing if said.reason == reason]
            verb = "does" if len(same) == 1 else "do"
            return f"{', '.join(same)} {verb} not capture: {reason or 'no reason given'}"
        return f"no word of the capture from {', '.join(self.silent)}" if self.silent else ""

    @property
    def silent(self) -> tuple[str, ...]:
        """The ranks of which no hello file is there, with hs-dump."""
        heard = {said.rank for said in self.hellos}
        first, ranks = (self.node.first, self.node.ranks) if self.node else (0, self.tp)
        here = range(first, first + ranks)
        return tuple(f"TP{rank}" for rank in here if rank not in heard) if self.dump_dir else ()

    @property
    def dead(self) -> tuple[str, Exit] | None:
        """The first process of the server that ended by itself: ``server``, ``TP1``, ``detokenizer``, and how."""
        ends = {**self.ranks, **self.helpers, "server": self.exit}
        seen = [(name, end) for name, end in ends.items() if end]
        return min(seen, key=lambda pair: pair[1].time) if seen else None


def parse_run(raw: dict[str, Any]) -> Run:
    """A run as the agent's ``run-list`` tells it: the fields of ``Run`` by name, exits as objects."""
    special = {"argv", "exit", "ranks", "helpers", "left", "hellos", "attempts", "job", "node", "parts"}
    known = {name: raw[name] for name in Run.__dataclass_fields__ if name not in special and name in raw}
    return Run(
        **known,
        argv=tuple(raw["argv"]),
        exit=_exit(raw["exit"]),
        ranks={name: _exit(value) for name, value in raw["ranks"].items()},
        helpers={name: _exit(value) for name, value in raw["helpers"].items()},
        attempts=tuple(_attempt(one) for one in raw.get("attempts", [])),
        left=tuple(raw["left"]),
        job=parse_job(raw.get("job")),
        hellos=parse_hellos(raw.get("hellos", [])),  # a bundle may be older than this field
        node=_node(raw.get("node")),
    )


def parse_hellos(raw: list[dict[str, Any]]) -> tuple[Hello, ...]:
    """Hello files as the agent read them."""
    return tuple(
        Hello(
            rank=one.get("rank"),
            ok=bool(one.get("ok")),
            reason=str(one.get("reason") or ""),
            strategy=str(one.get("strategy") or ""),
            boundaries=tuple(one.get("boundaries") or ()),
            final=str(one.get("final") or ""),
        )
        for one in raw
    )


def _attempt(raw: dict[str, Any]) -> Attempt:
    ranks = {name: _exit(value) for name, value in {**raw["ranks"], **raw["helpers"]}.items()}
    return Attempt(raw["attempt"], raw["started"], _exit(raw["exit"]), ranks)


def _node(raw: dict[str, Any] | None) -> Node | None:
    return Node(**{**raw, "hosts": tuple(raw["hosts"])}) if raw else None


def _exit(raw: dict[str, Any] | None) -> Exit | None:
    return Exit(**raw) if raw else None
