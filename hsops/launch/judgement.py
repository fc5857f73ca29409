"""What a launch under watch may come to."""

from __future__ import annotations

from dataclasses import dataclass

from hsops.core.log_summary import LogSummary
from hsops.core.runs import Exit


@dataclass(frozen=True, slots=True)
class Died:
    """A process of the server ended: ``server``, ``TP1``, ``detokenizer`` ..., and how."""

    who: str
    exit: Exit | None
    summary: LogSummary


@dataclass(frozen=True, slots=True)
class CaptureRefused:
    """A rank does not capture, or said nothing although the server is healthy. ``fix``: what to do about it."""

    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class Silent:
    """Nothing has moved for ``silent_s``; ``limit_s`` was allowed."""

    silent_s: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class Answering:
    """The server answers, stably, and every rank that has to captures."""


@dataclass(frozen=True, slots=True)
class KeyWanted:
    """The server is up and refuses whoever has no API key, or not this one: ``status`` is what ``path`` said."""

    path: str
    status: int


Judgement = Died | CaptureRefused | Silent | Answering | KeyWanted
