"""A server that prompts go to: connected when it is healthy and captures, looked into when it does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from hsops.core.deadline import QUICK
from hsops.core.errors import HsopsError, UnhealthyError, UnreachableError
from hsops.core.events import Emit, Note
from hsops.core.runs import Run
from hsops.core.secret import value_of
from hsops.extract.gate import capacity
from hsops.extract.plan import Capture
from hsops.extract.settle import Limits, limits_of
from hsops.remote.agent import Agent
from hsops.remote.dumps import Listing, Lost, list_samples
from hsops.remote.runs import alive_run, find_run, need_capture, settled
from hsops.remote.server import Server

AHEAD = 2  # times what a server takes at once, requests and tokens: its next batch waits in its queue, whole
DYING_S = 2.0  # from a closed port to the supervisor's word that the process is gone
FRESH_S = 20.0  # an examination that found the server well is not repeated for each request that broke with it
DIAGNOSE = (
    "hsops diagnose says more; hsops launch --wait-healthy and the same extract again continue; "
    "extract --relaunch 3 starts it by itself"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a diagnosis came to.

    Args:
        sick: the server is dead or hangs; else it is slow, or well.
        words: class and summary.
        verdict: as ``hsops diagnose --json`` has it.
    """

    sick: bool
    words: str
    verdict: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """What an extract must know of a server.

    Args:
        server: its name.
        folder: its dump folder on the host, unless its run says otherwise.
        agent: on the host.
        capture: what a dump of it holds.
        diagnose: looks into a run of it.
        launch: starts it, or picks up what runs, and waits until it is healthy; True: a run that is not is replaced.
        env: its environment, for its tokenizer.
        lost: leaves out what is to be made again, whatever the manifest says.
    """

    server: str
    folder: str
    agent: Agent
    capture: Capture
    diagnose: Callable[[str], Finding]
    launch: Callable[[bool], None]
    env: Mapping[str, str] = field(default_factory=dict)
    lost: Lost | None = None


class Standing:
    """How a server stands.

    Args:
        place: the server.
        concurrency: requests at once.
        emit: told of a server that is only slow.
    """

    def __init__(self, place: Place, concurrency: int, emit: Emit) -> None:
        self.place, self.agent, self.host = place, place.agent, place.agent.host.name
        self.folder, self.concurrency, self._emit = place.folder, concurrency, emit
        self.run: Run | None = None
        self.limits: Limits | None = None
        self.tokens: int | None = None  # at once
        self.requests = concurrency
        self.finding: Finding | None = None
        self._driven: Run | None = None  # the last one that was healthy
        self._tried = ""
        self._well_at = float("-inf")
        self._just_well: tuple[str, int, float] | None = None  # run, attempt, when

    def look(self) -> Listing:
        """The manifest of the run that is there, or of the last one."""
        self.run = alive_run(self.agent, self.place.server) or self.run
        self.folder = self.run.dump_dir if self.run and self.run.dump_dir else self.place.folder
        listing = list_samples(self.agent, self.folder)
        return self.place.lost.leave_out(self.agent, self.folder, listing) if self.place.lost else listing

    @contextmanager
    def connected(self) -> Iterator[Server]:
        """The server.

        Raises:
            UnhealthyError: it is not healthy, or does not capture.
        """
        name = self.place.server
        alive = alive_run(self.agent, name)
        if alive is None and self._driven and self._driven.job:
            raise self.death()  # Slurm knows why
        self.run = run = need_capture(self.agent, name, alive)
        with (
            self.agent.at(run).tunnel(run.port) as port,
            Server(port, host=self.host, concurrency=self.concurrency, keys=run.keys) as server,
        ):
            if not self._is_just_well(run):
                server.check_health()
            self._driven, self._tried = run, run.id
            _must_capture(run, self.host)
            yield server

    def found_well(self) -> None:
        """Whoever connects next, to this very run and soon, does not ask again: a probe takes SGLang a second."""
        if self.run:
            self._just_well = self.run.id, self.run.attempt, time.monotonic()

    def _is_just_well(self, run: Run) -> bool:
        """Counts once: after a loss it is asked."""
        known, self._just_well = self._just_well, None
        return known is not None and known[:2] == (run.id, run.attempt) and time.monotonic() - known[2] < FRESH_S

    def ask_limits(self, server: Server) -> Limits:
        """What the server takes; and how much at once, in ``tokens`` and ``requests``."""
        info, path = server.info(), value_of(self.run.argv, "--model-path") if self.run else ""
        holds, running = capacity(info)
        self.tokens = AHEAD * holds if holds else None
        self.requests = min(self.concurrency, AHEAD * running) if running else self.concurrency
        self.limits = limits_of(self.place.server, info, self.agent.call("model-read", deadline=QUICK, path=path))
        return self.limits

    def examine(self, server: Server, error: HsopsError) -> None:
        """After a broken or missing answer: is the server still there and answering?

        Raises:
            UnhealthyError: no.
        """
        if time.monotonic() - self._well_at < FRESH_S:
            return
        self._must_live()
        try:
            server.check_health()
        except UnhealthyError as unhealthy:
            self.look_into()
            if self.finding is None or self.finding.sick:
                self._must_live(DYING_S)
                raise UnhealthyError(
                    f"the server stopped answering: {error.message}; {unhealthy.message}", host=self.host, fix=DIAGNOSE
                ) from None
            words, self.finding = self.finding.words, None
            self._emit(Note(f"{self.place.server} is slow, not stuck: going on; {words}", self.host))
        self._well_at = time.monotonic()

    def _must_live(self, patience: float = 0.0) -> None:
        """Raises its death, also one of the next ``patience`` seconds: who ends closes his port first."""
        assert self.run
        until = time.monotonic() + patience
        while True:
            found = find_run(self.agent, self.run)
            if found is None or not found.alive or found.pid != self.run.pid:
                raise self.death(found)
            if time.monotonic() >= until:
                return
            time.sleep(0.1)

    def look_into(self) -> None:
        """Diagnose the run; a diagnosis that fails is told, and none."""
        try:
            self.finding = self.place.diagnose(self.run.id if self.run else "")
        except HsopsError as error:
            self.finding = None
            self._emit(Note(f"{self.place.server} could not be diagnosed: {error.message}", self.host, "warn"))

    def told(self, error: HsopsError) -> HsopsError:
        """A job that cannot be entered is mostly over: then that is told, and stays nobody's fault but Slurm's."""
        if isinstance(error, UnreachableError) and self.run and self.run.job:
            with suppress(HsopsError):
                found = settled(self.agent, self.run)
                if found.job and found.job.over:
                    return UnreachableError(self.death(found).message, host=self.host, fix=DIAGNOSE)
        return error

    def death(self, found: Run | None = None) -> UnhealthyError:
        """The run's, as the host tells it."""
        assert self.run
        found = found or find_run(self.agent, self.run)
        found = settled(self.agent, found) if found and found.job else found
        end = found and (found.exit or (found.attempts[-1].exit if found.attempts else None))
        cause = found.job.cause if found and found.job else ""
        how = f": {cause or end}" if cause or end else ""
        return UnhealthyError(f"run {self.run.id} of {self.run.server} died{how}", host=self.host, fix=DIAGNOSE)

    @property
    def hangs(self) -> bool:
        """A run that was healthy, or that was waited for, is still there: it must be ended before a new one starts."""
        found = alive_run(self.agent, self.place.server)
        return found is not None and found.id == self._tried

    def waited(self) -> None:
        """The run that is there was waited for in vain."""
        found = alive_run(self.agent, self.place.server)
        self._tried = found.id if found else ""

    @property
    def comes_back(self) -> bool:
        """It died, and the host's supervisor starts it again by itself, or Slurm does; or its job still waits."""
        known = self._driven or self.run
        found = find_run(self.agent, known) if known else None
        if found and found.job and found.alive:
            found = settled(self.agent, found)
            return found.pending or (self._driven is not None and found.attempt > self._driven.attempt)
        if found is None or self._driven is None or not found.alive:
            return False
        return found.restarts and (found.attempt > self._driven.attempt or found.restart_at is not None)


def _must_capture(run: Run, host: str) -> None:
    """Of a healthy server every rank has said by now whether it captures."""
    if run.capture_fault:
        raise UnhealthyError(
            f"run {run.id} would write no dumps: {run.capture_fault}",
            host=host,
            why="prompts would be computed, and nothing kept of them",
            fix=f"correct that, then hsops launch {run.server} --replace --wait-healthy",
        )
