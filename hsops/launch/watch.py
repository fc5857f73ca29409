"""A launch under watch: takes what the agent and the prober tell, and judges. No I/O; time is an argument."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hsops.core.baseline import Baseline, compare
from hsops.core.events import Event, Note
from hsops.core.log_capture import Refusal
from hsops.core.milestone_table import BY_ID, STAGES, stage_end
from hsops.core.runs import Hello, Run, parse_hellos, parse_run
from hsops.launch import stall
from hsops.launch.events import CaptureSaid, HealthChanged, MilestoneReached, StageDone
from hsops.launch.health import STABLE, Ladder, Probe
from hsops.launch.judgement import Answering, CaptureRefused, Died, Judgement, KeyWanted, Silent
from hsops.launch.nodes import Nodes
from hsops.launch.vitals import Rates, Vitals, parse_vitals
from hsops.remote.log import LogCut, Place

_IMPORT = "hsops stop; repair that import with the host's Python; hsops launch --wait-healthy"
_REFUSED = (
    "hsops stop; correct what the reason names, in servers.<name>.args or env or the file of --config; launch again"
)
_SILENT = "hsops stop; hsops deploy --status tells whether the patch is in place; hsops logs what its processes said"
_NO_FILE = "every rank writes a hello file to {}/hello when its model is built"
REFUSAL_GRACE_S = 2.0  # after a rank's refusal: the others mostly refuse too, and are named with it
HELLO_GRACE_S = 10.0  # of a healthy server: its hello files are looked for each second, later on a busy machine
DEATH_GRACE_S = 0.8  # after a death: what the others have to say comes in the next moments
DECISION_S = 30.0  # with a restart policy: its supervisor gives the rest 15 s to notice, ends it, and decides


class Watch:
    """Everything known about one launch.

    Args:
        run: as it was when the watch began; of one over several hosts the whole.
        baseline: good runs of equal launches.
        modules: of SGLang, those that define the served model's class; only with hs-dump.
        floor: least silence in seconds that is called a stall; None for the default.
        now: seconds of the watcher's clock.
    """

    def __init__(
        self, run: Run, baseline: Baseline, *, floor: float | None, now: float, modules: Sequence[str] = ()
    ) -> None:
        self.run, self.baseline, self._modules = run, baseline, modules
        self.utc_offset = 0.0
        self.host_now = run.started
        self.at = tuple(Place() for _ in range(max(1, len(run.parts))))  # in the log of each node
        self.ladder = Ladder()
        self.probe: Probe | None = None
        self.signs = stall.nothing_seen(now)
        self.vitals: Vitals | None = None
        self.rates = Rates()
        self.places: Mapping[str, tuple[str, ...]] = {}  # rank -> where py-spy saw it in this silence
        self._floor = floor
        self._nodes = Nodes(run)
        self.summary = self._nodes.summary()
        self._dead_at: float | None = None
        self._stable_at = math.inf  # since when it is STABLE
        self._refused_at: float | None = None
        self._told_restart: float | None = None
        self._over = False

    @property
    def place(self) -> Place:
        """How far the log is known; of several nodes the first one's."""
        return self.at[0]

    def take(self, event: dict[str, Any], now: float) -> Iterator[Event]:
        """One event of ``run-follow``, with its ``node`` where there are several; yields what is new."""
        kind, node = event["kind"], event.get("node", 0)
        if kind in ("run", "result"):
            self._over = self._over or (kind == "result" and node == 0)
            if node == 0:
                self.utc_offset = event.get("utc_offset", self.utc_offset)
                self.host_now = event.get("now", self.host_now)
            yield from self._run(self._nodes.told(node, parse_run(event["run"])), now)
        elif kind == "log":
            yield from self._log(event, node, now)
        elif kind == "log-cut":
            yield self._cut(self.at[node].cut(event), node)
        elif kind == "vitals":
            self._vitals(self._nodes.vitals(node, parse_vitals(event)), now)
        elif kind == "hello":
            yield from self._hello(self._nodes.hellos(node, parse_hellos(event["ranks"])))
        elif kind == "link":
            host = self._nodes.lost(node)
            yield Note(f"node {node}: {event['lost']}; trying again in {event['wait']:g} s", host, "warn")
        self._note_refusal(now)
        if self._comes_back or self._nodes.away:  # silent, and meant to be; or moving where nobody sees it
            self.signs = self.signs.unwatched(now)

    def probed(self, probe: Probe, ladder: Ladder) -> Iterator[Event]:
        """One health probe."""
        changed, self.ladder, self.probe = ladder.level != self.ladder.level, ladder, probe
        if changed:
            yield HealthChanged(ladder.level, round(probe.seconds, 3), probe.detail)

    def _note_refusal(self, now: float) -> None:
        refuses = self.summary.capture.refusals or any(not said.ok for said in self.run.hellos)
        if refuses and self._refused_at is None:
            self._refused_at = now

    def judge(self, now: float) -> Judgement | None:
        """What it has come to; None while it goes on, also while it waits to be started again."""
        return None if self._comes_back else self._judged(now)

    @property
    def _comes_back(self) -> bool:
        """It has ended, and its supervisor waits to start it again."""
        return self.run.alive and self.run.restart_at is not None and not self._over

    @property
    def _undecided(self) -> bool:
        """Should a process of it have died, its supervisor is still to say whether the server is started again.

        It is not asked for a server that has never listened.
        """
        return self.run.alive and self.run.restarts and self.run.served and not self._comes_back and not self._over

    def _judged(self, now: float) -> Judgement | None:
        if said := self._died(now) or self._refused(now):
            return said
        if self._dead_at is not None:
            return None
        if self.probe is not None and self.probe.status in (401, 403):
            return KeyWanted(self.probe.path, self.probe.status)
        if self._is_stable(now):
            return None if self.run.dump_dir and self.run.silent else Answering()
        limit = self.limit_s
        silent = self.signs.silent_s(now)
        return Silent(silent, limit) if silent >= limit else None

    def _died(self, now: float) -> Died | None:
        """None also while there may be last words, or another attempt, to wait for."""
        grace = DECISION_S if self._undecided else DEATH_GRACE_S
        if not self._over and (self._dead_at is None or now - self._dead_at < grace):
            return None
        who, exit_ = (self.run.dead if self._dead_at is not None else None) or ("server", self.run.exit)
        return Died(who, exit_, self.summary)

    def _refused(self, now: float) -> CaptureRefused | None:
        """What the log and the hello files say against the capture; a rank may speak until the server is healthy."""
        if not self.run.dump_dir:
            return None
        for module in self._modules:
            if lost := self.summary.capture.unimported.get(module):
                said = f"SGLang could not import {module}, and would serve another class in its place"
                return CaptureRefused(f"{said}: {lost.why} (log line {lost.line})", _IMPORT)
        heard = not self.run.silent or (self._refused_at is not None and now - self._refused_at >= REFUSAL_GRACE_S)
        if heard and any(not said.ok for said in self.run.hellos):
            return CaptureRefused(self.run.capture_fault, _REFUSED)
        if heard and (refusal := self._refusal_of_the_silent()):
            return CaptureRefused(f"{refusal.who} does not capture: {refusal.why} (log line {refusal.line})", _REFUSED)
        if self._is_stable(now) and self.run.silent and now - self._stable_at >= HELLO_GRACE_S:
            return CaptureRefused(f"{self.run.capture_fault}: {_NO_FILE.format(self.run.dump_dir)}", _SILENT)
        return None

    def _is_stable(self, now: float) -> bool:
        if self.ladder.level != STABLE:
            self._stable_at = math.inf
        elif self._stable_at == math.inf:
            self._stable_at = now
        return self.ladder.level == STABLE

    def _refusal_of_the_silent(self) -> Refusal | None:
        """What the log has of a process without a hello file: a full or read-only folder keeps none."""
        of_ranks = {f"TP{rank}" for rank in range(self.run.tp)}
        silent = set(self.run.silent)
        lines = self.summary.capture.refusals.values()
        return next((line for line in lines if silent and (line.who in silent or line.who not in of_ranks)), None)

    def be_patient(self, seconds: float) -> None:
        """From now on only ``seconds`` of silence are a stall: somebody looked, and it is slow, not stuck."""
        self._floor = seconds

    @property
    def limit_s(self) -> float:
        """How long silence may last in the step under way."""
        return stall.limit_s(floor=self._floor, usual=self.usual_step_s)

    @property
    def usual_step_s(self) -> float | None:
        """What good runs took for the step under way."""
        upcoming = self.summary.next
        return self.baseline.step_s(upcoming.id) if upcoming else None

    @property
    def remaining_s(self) -> float | None:
        """Seconds to healthy by good runs, counted from now; 0 when it should have been healthy already."""
        found = compare(self.baseline, self.summary)
        if found is None or found.remaining_s is None:
            return None
        last = self.summary.last_milestone
        reached = self.seconds_at(last.id) if last else 0.0
        return max(0.0, found.remaining_s - (self.elapsed_s - (reached or 0.0)))

    @property
    def elapsed_s(self) -> float:
        """Seconds since the server was started, by the host's clock."""
        return max(0.0, self.host_now - self.run.started)

    def seconds_at(self, milestone: str, rank: str | None = None) -> float | None:
        """Seconds after the start when a milestone was reached, by ``rank`` or by the last one."""
        marks = self.summary.reached.get(milestone, {})
        times = [m.time for name, m in marks.items() if m.time is not None and rank in (None, name)]
        return max(0.0, max(times) - self.utc_offset - self.run.started) if times else None

    @property
    def port_is_open(self) -> bool:
        """The log says that the HTTP server listens."""
        return "http" in self.summary.reached

    def _run(self, run: Run, now: float) -> Iterator[Event]:
        before, self.run = self.run, run
        if run.attempt != before.attempt:  # what ended, and what was refused, was the one before
            self._dead_at = self._refused_at = None
            if self._told_restart is None:  # it came back between two looks
                yield Note(f"{_how_it_ended(run)}; the host has started it again, as attempt {run.attempt}")
            self._told_restart = None
        if self._comes_back and run.restart_at != self._told_restart:
            self._told_restart = run.restart_at
            yield Note(self._coming_back())
        if not self._comes_back and (run.dead or not run.alive) and self._dead_at is None:
            ago = self.host_now - run.dead[1].time if run.dead else 0.0
            self._dead_at = now - min(max(0.0, ago), DEATH_GRACE_S / 2)  # what a busy host took to tell is part of it
            if self._undecided and run.dead:
                said = f"{run.dead[0]} of {run.server} has ended ({run.dead[1]})"
                yield Note(
                    f"{said}; its supervisor decides within {DECISION_S:.0f} s whether it starts it again", level="warn"
                )

    def _coming_back(self) -> str:
        who, exit_ = self.run.dead or ("server", self.run.exit)
        wait = max(0.0, (self.run.restart_at or 0.0) - self.host_now)
        return f"{who} ended ({exit_}); the host starts it again in {wait:.0f} s, for attempt {self.run.attempt + 1}"

    def _log(self, event: dict[str, Any], node: int, now: float) -> Iterator[Event]:
        before, self.summary = self.summary, self._nodes.read(node, self.at[node].take(event))
        self.signs = self.signs.seen("log", self.summary.messages, now)
        for name, marks in self.summary.reached.items():
            old = before.reached.get(name, {})
            for rank, mark in marks.items():
                if rank not in old:
                    yield self._reached(name, rank, mark.line)
        for stage in STAGES:
            end = stage_end(stage)
            if self.summary.complete(end) and not before.complete(end):
                yield StageDone(stage, self.seconds_at(end.id), self.baseline.seconds_to(end.id))
        self.signs = self.signs.seen("milestone", sum(len(m) for m in self.summary.reached.values()), now)

    def _cut(self, cut: LogCut, node: int) -> Event:
        """What was reached stays, unless the server itself begins anew."""
        if cut.why == "restarted":
            self.summary = self._nodes.forget(node)
        return Note(str(cut))

    def placed(self, run: Run, *, ended: bool = False) -> None:
        """Its job has a place now, perhaps another one than before; or with ``ended`` what Slurm says of its end."""
        self.run = replace(self.run, job=run.job, port=run.port, phase=run.phase)
        if not ended:
            self._over, self._dead_at = False, None

    def reattached(self, now: float) -> None:
        """The link was lost until now: what moved meanwhile was not seen, so silence counts from here."""
        self.signs = self.signs.unwatched(now)

    def _reached(self, name: str, rank: str, line: int) -> MilestoneReached:
        usual = self.baseline.seconds_to(name)
        seconds, host = self.seconds_at(name, rank), self.run.host_of(rank)
        return MilestoneReached(name, BY_ID[name].stage, rank, line, seconds, usual, host)

    def _vitals(self, vitals: Vitals, now: float) -> None:
        self.vitals = vitals
        self.host_now = vitals.now
        self.rates.take(vitals, now)
        touched = sum(rank.minflt for rank in vitals.ranks.values())
        for name, value in (
            ("disk", vitals.read),
            ("cached", vitals.cached),
            ("faults", vitals.majflt),
            ("touched", touched),
            ("memory", vitals.rss),
            ("gpu", vitals.gpu_mib),
            ("jit", vitals.jit[0]),
        ):
            if value is not None:
                self.signs = self.signs.seen(name, value, now)
        work = sum(one.cpu + 1 for one in vitals.compilers)
        self.signs = self.signs.compilers(work, now, there=bool(vitals.compilers)).functions(vitals.functions, now)
        self.places = vitals.functions or (self.places if self.signs.stacks else {})

    def _hello(self, hellos: tuple[Hello, ...]) -> Iterator[Event]:
        known = set(self.run.hellos)
        self.run = replace(self.run, hellos=hellos)
        for said in hellos:
            if said not in known:
                yield CaptureSaid(said.rank, said.ok, said.reason)


def _how_it_ended(run: Run) -> str:
    """The first process of the attempt before that did."""
    last = run.attempts[-1] if run.attempts else None
    ends = {**last.ranks, "server": last.exit} if last else {}
    seen = [(end.time, who, end) for who, end in ends.items() if end]
    _, who, end = min(seen, key=lambda one: one[0]) if seen else (0.0, "server", None)
    return f"{who} ended ({end or 'nobody saw how'})"
