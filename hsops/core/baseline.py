"""What good runs of a server looked like: log lines and seconds at each milestone. Recorded after a healthy launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from hsops.core.launched import Launched, parse_launched
from hsops.core.log_summary import LogSummary
from hsops.core.milestone_table import MILESTONES, RANK
from hsops.core.secret import kinds_without_keys

KEPT = 5  # good runs of one key that are remembered
KEYS = 8  # keys of one server: older ones are forgotten


@dataclass(frozen=True, slots=True)
class Step:
    """A milestone in one good run: the line and the seconds since the launch when the last rank reached it."""

    lines: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GoodRun:
    """One launch that became healthy.

    Args:
        run: its id.
        spec_hash: of what was launched; only equal launches are worth comparing.
        sglang: version.
        recorded: seconds since the epoch.
        steps: milestone id -> when it was complete.
        lines: of the log when the server was healthy, without those that health probes caused.
        seconds: from the launch to healthy.
        launched: what it was; None when an older hsops has recorded it.
        kinds: rank -> template, without keys -> the line that said it first, up to where it said that it is ready.
    """

    run: str
    spec_hash: str
    sglang: str
    recorded: float
    steps: Mapping[str, Step]
    lines: int
    seconds: float
    launched: Launched | None = None
    kinds: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Equal for runs that are worth comparing line by line; "" when nobody knows."""
        return self.launched.key if self.launched else ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A log against good runs.

    Args:
        lines: of the log now, without those that health probes caused.
        good_lines: fewest and most lines of good runs when healthy.
        here: fewest and most lines of good runs at the last milestone reached; None when none was reached.
        next: the next milestone's id; "" when the server is ready.
        usual_s: seconds that good runs took from the last milestone to the next; None when unknown.
        remaining_s: seconds good runs took from the last milestone to healthy; None when unknown.
    """

    lines: int
    good_lines: tuple[int, int]
    here: tuple[int, int] | None
    next: str
    usual_s: float | None
    remaining_s: float | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """The good runs of one server that are remembered, newest first."""

    server: str
    runs: tuple[GoodRun, ...] = ()

    def of(self, spec_hash: str, key: str = "") -> Baseline:
        """Only runs of an equal launch; else those of the same key; else all of them, for want of better."""
        equal = tuple(run for run in self.runs if run.spec_hash == spec_hash)
        return Baseline(self.server, equal or self.keyed(key) or self.runs)

    def keyed(self, key: str) -> tuple[GoodRun, ...]:
        """The runs of one key."""
        return tuple(run for run in self.runs if key and run.key == key)

    @property
    def keys(self) -> tuple[str, ...]:
        """Of the runs, the newest first."""
        return tuple(dict.fromkeys(run.key for run in self.runs))

    def with_run(self, run: GoodRun) -> Baseline:
        """This baseline and one run more; the oldest of its key is forgotten, and the oldest keys."""
        runs = (run, *(old for old in self.runs if old.run != run.run))
        keys = list(dict.fromkeys(one.key for one in runs))[:KEYS]
        kept = {key: [one.run for one in runs if one.key == key][:KEPT] for key in keys}
        return Baseline(self.server, tuple(one for one in runs if one.run in kept.get(one.key, ())))

    @property
    def lines(self) -> tuple[int, int] | None:
        """Fewest and most log lines when healthy."""
        return _range([run.lines for run in self.runs])

    @property
    def seconds(self) -> float | None:
        """Usual seconds from launch to healthy."""
        return median(run.seconds for run in self.runs) if self.runs else None

    def lines_at(self, milestone: str) -> tuple[int, int] | None:
        """Fewest and most log lines when ``milestone`` was complete."""
        return _range([run.steps[milestone].lines for run in self.runs if milestone in run.steps])

    def seconds_to(self, milestone: str) -> float | None:
        """Usual seconds from the launch until ``milestone`` was complete."""
        found = [run.steps[milestone].seconds for run in self.runs if milestone in run.steps]
        return median(found) if found else None

    def step_s(self, milestone: str) -> float | None:
        """The longest that a good run took from the milestone before ``milestone`` (in time) to it."""
        found = []
        for run in self.runs:
            if milestone in run.steps:
                at = run.steps[milestone].seconds
                before = [s.seconds for name, s in run.steps.items() if name != milestone and s.seconds <= at]
                found.append(at - max(before, default=0.0))
        return max(found) if found else None


def good_run(
    summary: LogSummary,
    *,
    run: str,
    spec_hash: str,
    sglang: str,
    started: float,
    now: float,
    utc_offset: float,
    launched: Launched | None = None,
) -> GoodRun:
    """A good run from its log.

    Args:
        launched: what it was.
        started: seconds since the epoch when the server was started, by the host's clock.
        now: the same clock, when it was healthy.
        utc_offset: seconds that the host's local time, which the log is stamped in, is ahead of UTC.
    """
    steps = {}
    for milestone in MILESTONES:
        marks = summary.reached.get(milestone.id, {}).values()
        if marks and (milestone.scope != RANK or summary.complete(milestone)):
            times = [mark.time - utc_offset - started for mark in marks if mark.time is not None]
            if times:
                steps[milestone.id] = Step(max(mark.line for mark in marks), max(0.0, round(max(times), 1)))
    lines = summary.lines - summary.probe_lines
    until = summary.ready_line
    kinds = {
        rank: kinds_without_keys({text: at for text, (at, _) in found.items() if not until or at <= until})
        for rank, found in summary.kinds.items()
    }
    return GoodRun(run, spec_hash, sglang, now, steps, lines, round(now - started, 1), launched, kinds)


def compare(baseline: Baseline, summary: LogSummary) -> Comparison | None:
    """Where ``summary`` stands against good runs; None without any."""
    if not baseline.lines or baseline.seconds is None:
        return None
    last, upcoming = summary.last_milestone, summary.next
    reached = baseline.seconds_to(last.id) if last else 0.0
    due = baseline.seconds_to(upcoming.id) if upcoming else None
    return Comparison(
        lines=summary.lines - summary.probe_lines,
        good_lines=baseline.lines,
        here=baseline.lines_at(last.id) if last else None,
        next=upcoming.id if upcoming else "",
        usual_s=max(0.0, due - reached) if due is not None and reached is not None else None,
        remaining_s=max(0.0, baseline.seconds - reached) if reached is not None else None,
    )


def as_json(baseline: Baseline) -> dict[str, Any]:
    """The file's content. Its templates are numbered: every rank of every run says mostly the same."""
    texts: dict[str, int] = {}
    runs = []
    for run in baseline.runs:
        kinds = {
            rank: [[texts.setdefault(text, len(texts)), line] for text, line in found.items()]
            for rank, found in run.kinds.items()
        }
        runs.append({**asdict(run), "kinds": kinds})
    return {"server": baseline.server, "runs": runs, "texts": list(texts)}


def parse_baseline(raw: dict[str, Any]) -> Baseline:
    """The reverse of ``as_json``.

    Raises:
        KeyError, TypeError, IndexError: it is not one.
    """
    return Baseline(raw["server"], tuple(_parse_run(run, raw.get("texts", [])) for run in raw["runs"]))


def _parse_run(raw: dict[str, Any], texts: list[str]) -> GoodRun:
    kinds = {  # an older hsops kept keys in them
        rank: kinds_without_keys({texts[text]: line for text, line in found})
        for rank, found in raw.get("kinds", {}).items()
    }
    was = raw.get("launched")
    steps = {name: Step(**step) for name, step in raw["steps"].items()}
    return GoodRun(**{**raw, "steps": steps, "kinds": kinds, "launched": parse_launched(was) if was else None})


def _range(values: list[int]) -> tuple[int, int] | None:
    return (min(values), max(values)) if values else None
