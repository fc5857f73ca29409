"""What happens during a launch, as events: JSON lines, lines in a pipe, or the live matrix."""

from __future__ import annotations

from dataclasses import dataclass

from hsops.core.events import Event, Picture, Trace


@dataclass(frozen=True, slots=True)
class RunFollowed(Event):
    """A run is being watched. ``fresh``: this launch has started it."""

    server: str
    host: str
    run: str
    tp: int
    port: int
    pid: int
    nccl: str
    fresh: bool


@dataclass(frozen=True, slots=True)
class MilestoneReached(Trace):
    """A step was reached, by ``rank`` ("" for the main process), ``seconds`` after the start.

    ``usual_s``: when good runs reached it; None when unknown. ``host``: of the rank, where a server is on several.
    """

    milestone: str
    stage: str
    rank: str
    line: int
    seconds: float | None
    usual_s: float | None
    host: str = ""


@dataclass(frozen=True, slots=True)
class StageDone(Trace):
    """Every rank is through a stage, ``seconds`` after the start; good runs were after ``usual_s``."""

    stage: str
    seconds: float | None
    usual_s: float | None


@dataclass(frozen=True, slots=True)
class HealthChanged(Trace):
    """The server's health has another level: refused, starting, up, answers, stable."""

    level: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CaptureSaid(Event):
    """What the capture of one rank says of itself."""

    rank: int | None
    captures: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Waiting(Trace):
    """Nothing new, but the watch goes on.

    Args:
        stage: under way; missing: ranks that have not ended it, when others have, as ``Run.named`` tells them.
        silent_s: since anything moved; limit_s: when that is called a stall.
        lines: of the log. remaining_s: to healthy, by good runs; None when unknown.
        doing: what it does meanwhile, in sentences: who reads how fast, what is compiled.
    """

    stage: str
    missing: tuple[str, ...]
    silent_s: float
    limit_s: float
    lines: int
    remaining_s: float | None
    doing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One stage in the matrix. ``cells``: a rank each, ``+`` done, ``~`` begun, ``.`` due, "" not its business."""

    stage: str
    cells: tuple[str, ...]
    took_s: float | None
    usual_s: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Matrix(Picture):
    """The whole picture, for a terminal; not an event for machines. ``doing``: as in ``Waiting``."""

    ranks: tuple[str, ...]
    rows: tuple[Row, ...]
    lines: int
    health: str
    elapsed_s: float
    remaining_s: float | None
    silent_s: float
    doing: tuple[str, ...] = ()
