"""What a log tells, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hsops.core.log_capture import CaptureLines
from hsops.core.log_errors import LogError, first_cause
from hsops.core.milestone_table import MILESTONES, ONCE, Milestone


@dataclass(frozen=True, slots=True)
class Mark:
    """Where and when a milestone was reached: the line, from 1, and the log's own seconds (None without a stamp)."""

    line: int
    time: float | None


@dataclass(frozen=True, slots=True)
class Bar:
    """A progress bar's last state. ``done`` and ``total`` are 0 when the bar does not say."""

    caption: str
    percent: int
    done: int
    total: int
    line: int
    rank: str


@dataclass(frozen=True, slots=True)
class LogSummary:
    """A server log, read so far.

    Args:
        lines: complete lines, as ``wc -l`` counts; bytes: all that was fed.
        probe_lines: lines that health probes cause, ours or others': no sign of work.
        messages: all other messages; a bar's redraws count.
        reached: milestone id -> rank -> first mark; the rank of a milestone that is said once is ``""``.
        rank_lines: rank -> its tagged lines; ``""`` counts the lines without a tag.
        templates: message with its figures blanked -> rank -> count. At most ``LogReader.TEMPLATES`` kinds.
        bars: caption -> last state.
        errors: troubles, in the order of the log.
        args: SGLang's resolved arguments that hsops cares for, as text: ``tp_size``, ``port``, ``device`` ...
        tp: ranks expected: from the arguments, else from the highest tag seen, else 1.
        port: from the arguments; None when not seen.
        sglang: version, when the caller knew it (the log does not print it).
        first_time, last_time: of stamped lines.
        last: rank -> (line, text) of its last message; ``""`` holds the last untagged one.
        capture: what it says about the capture of hidden states.
        kinds: rank -> template -> the first line of that kind and its text, in the order in which the rank said them;
            without those of health probes.
    """

    lines: int
    bytes: int
    probe_lines: int
    messages: int
    reached: Mapping[str, Mapping[str, Mark]]
    rank_lines: Mapping[str, int]
    templates: Mapping[str, Mapping[str, int]]
    bars: Mapping[str, Bar]
    errors: tuple[LogError, ...]
    args: Mapping[str, str]
    tp: int
    port: int | None
    sglang: str
    first_time: float | None
    last_time: float | None
    last: Mapping[str, tuple[int, str]]
    capture: CaptureLines = field(default_factory=CaptureLines)
    kinds: Mapping[str, Mapping[str, tuple[int, str]]] = field(default_factory=dict)

    @property
    def ranks(self) -> tuple[str, ...]:
        """``TP0`` ... as many as expected."""
        return tuple(f"TP{i}" for i in range(self.tp))

    def complete(self, milestone: Milestone) -> bool:
        """Said by everyone who has to say it."""
        seen = self.reached.get(milestone.id, {})
        return bool(seen) if milestone.scope == ONCE else all(rank in seen for rank in self.ranks)

    def missing(self, milestone: Milestone) -> tuple[str, ...]:
        """The ranks that have not said a milestone of scope rank."""
        seen = self.reached.get(milestone.id, {})
        return () if milestone.scope == ONCE else tuple(rank for rank in self.ranks if rank not in seen)

    @property
    def ready(self) -> bool:
        """The server said that it is ready."""
        return "ready" in self.reached

    @property
    def ready_line(self) -> int:
        """The line that said so; 0 before."""
        return max((mark.line for mark in self.reached.get("ready", {}).values()), default=0)

    @property
    def graphs_expected(self) -> bool:
        """CUDA graphs will be captured, as far as the arguments tell."""
        device, off = self.args.get("device", "cuda"), self.args.get("disable_cuda_graph", "False")
        return device == "cuda" and off != "True" and "Cuda graph is disabled" not in "".join(self.templates)

    @property
    def next(self) -> Milestone | None:
        """The first step that is due and not complete; None when the server is ready.

        A step that some ranks have passed and others not is the next one: that is where a stall lies.
        """
        for milestone in MILESTONES:
            due = not milestone.optional or (milestone.stage == "graphs" and milestone.scope != ONCE)
            if milestone.stage == "graphs" and not self.graphs_expected:
                due = False
            begun = milestone.scope != ONCE and milestone.id in self.reached
            if (due or begun) and not self.complete(milestone) and not self._overtaken(milestone):
                return milestone
        return None

    @property
    def last_milestone(self) -> Milestone | None:
        """The latest step that anyone has reached."""
        return next((m for m in reversed(MILESTONES) if m.id in self.reached), None)

    @property
    def stage(self) -> str:
        """The stage under way; ``ready`` at the end."""
        upcoming = self.next
        return upcoming.stage if upcoming else "ready"

    @property
    def cause(self) -> LogError | None:
        """The error worth showing first."""
        return first_cause(self.errors)

    def _overtaken(self, milestone: Milestone) -> bool:
        """A step said by nobody while a later one is complete: this version or set-up does not say it."""
        if milestone.id in self.reached:
            return False
        later = MILESTONES[MILESTONES.index(milestone) + 1 :]
        return any(self.complete(m) for m in later if not m.optional)
