"""A run: one launched instance of a server, as its run directory on the host tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
class Run:
    """One launched server.

    Args:
        id: ``MMDD-HHMMSS-xxxx``.
        server: the server's name in the inventory.
        phase: ``running``; ``exited`` by itself; ``stopped`` by ``hsops stop``; ``lost`` when the host
            or the supervisor died.
        pid: of ``launch_server``.
        started: seconds since the epoch on the host.
        port: the HTTP port on the host.
        tp: tensor-parallel size.
        argv: the command line.
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
        uptime_s: seconds from its start until now or its end, by the host's clock.
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
    uptime_s: float = 0.0

    @property
    def alive(self) -> bool:
        """The server's process is there."""
        return self.phase == "running"

    @property
    def dead(self) -> tuple[str, Exit] | None:
        """The first process of the server that ended by itself: ``server``, ``TP1``, ``detokenizer``, and how."""
        ends = {**self.ranks, **self.helpers, "server": self.exit}
        seen = [(name, end) for name, end in ends.items() if end]
        return min(seen, key=lambda pair: pair[1].time) if seen else None


def parse_run(raw: dict[str, Any]) -> Run:
    """A run as the agent's ``run-list`` tells it: the fields of ``Run`` by name, exits as objects."""
    special = {"argv", "exit", "ranks", "helpers", "left"}
    known = {name: raw[name] for name in Run.__dataclass_fields__ if name not in special}
    return Run(
        **known,
        argv=tuple(raw["argv"]),
        exit=_exit(raw["exit"]),
        ranks={name: _exit(value) for name, value in raw["ranks"].items()},
        helpers={name: _exit(value) for name, value in raw["helpers"].items()},
        left=tuple(raw["left"]),
    )


def _exit(raw: dict[str, Any] | None) -> Exit | None:
    return Exit(**raw) if raw else None
