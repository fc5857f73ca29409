"""How far a start is, and how long it may be silent."""

from __future__ import annotations

import re

from hsops.core.baseline import compare
from hsops.diagnose.evidence import Evidence

FLOOR_S = 20.0  # no silence shorter than this is a hang, however fast good runs are
UNKNOWN_FLOOR_S = 60.0  # the same without good runs to compare with
ASLEEP_FLOOR_S = 300.0  # what launch gives a step for which no good run vouches
_TIMERS = ("nanosleep", "clock_nanosleep")
SLOW_LOAD_S = 600.0  # weights that take longer come in slowly: from a local disk hundreds of GB take minutes
_SHARDS = re.compile(r"shards:[^\n]*?\[(?:(\d+):)?(\d+):(\d+)<")
_ALLOWED = 0.8  # of what a watch allows: it counts from other signs too, and a log's own clock has whole seconds


def patience(ev: Evidence) -> float:
    """Seconds of silence after which slow is out of the question: twice what good runs took for this step.

    Never more than a watch over the launch allows, which saw nothing else move for so long and asks therefore.
    """
    return min(_usual(ev), _ALLOWED * ev.allowed_s) if ev.allowed_s else _usual(ev)


def _usual(ev: Evidence) -> float:
    if not ev.baseline or not ev.log:
        return UNKNOWN_FLOOR_S
    known, upcoming = compare(ev.baseline, ev.log.summary), ev.log.summary.next
    usual = known.usual_s if known else None
    if usual is None and upcoming:  # the last milestone is one that no good run had
        usual = ev.baseline.step_s(upcoming.id)
    return UNKNOWN_FLOOR_S if usual is None else max(FLOOR_S, 2 * usual)


def load_patience(ev: Evidence) -> float:
    """Seconds of silence after which a load in which nothing moves is stuck: twice ``patience``.

    A rank that sleeps on a timer wakes by itself and may read then, which a look of a second does not see.
    """
    asleep = any(p.activity and p.activity.call in _TIMERS for p in ev.ranks.values())
    return max(ASLEEP_FLOOR_S, 2 * _usual(ev)) if asleep else 2 * patience(ev)


def starting_up(ev: Evidence) -> bool:
    """Lives and was never ready."""
    return ev.live and ev.alive and not ev.ready


def weights_in(ev: Evidence) -> bool:
    """Every rank said that its weights are read, or that it went on after them."""
    reached = ev.log.summary.reached if ev.log else {}
    return len(reached.get("weights", {})) >= ev.tp or len(reached.get("memory-pool", {})) >= ev.tp or "http" in reached


def shards_s(ev: Evidence) -> float:
    """Seconds that the shard bar has run, by itself; 0 without one."""
    found = _SHARDS.findall(ev.log.text) if ev.log else []
    hours, minutes, seconds = (int(part or 0) for part in found[-1]) if found else (0, 0, 0)
    return float(hours * 3600 + minutes * 60 + seconds)
