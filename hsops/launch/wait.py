"""Follow a run until it is healthy, dies or stalls: the I/O around ``watch``."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from hsops.core.baseline import Baseline, GoodRun, good_run
from hsops.core.errors import HsopsError, UnhealthyError, UnreachableError
from hsops.core.events import Emit, Note
from hsops.core.launched import launched
from hsops.core.log_errors import LogError
from hsops.core.log_summary import LogSummary
from hsops.core.runs import Exit, Run
from hsops.core.secret import without_keys
from hsops.launch.events import RunFollowed, Waiting
from hsops.launch.explain import doing
from hsops.launch.follow import follow
from hsops.launch.health import Ladder, Probe, Prober
from hsops.launch.judgement import Answering, CaptureRefused, Died, Judgement, KeyWanted, Silent
from hsops.launch.matrix import matrix
from hsops.launch.queue import wait_for_place
from hsops.launch.watch import Watch
from hsops.remote.agent import Agent
from hsops.remote.reattach import Retry, reattaching
from hsops.remote.runs import find_run, settled

DEFAULT_TIMEOUT_S = 7200.0  # the slowest cold start on record took 25 min; a stall is noticed long before this
_WAITING_S = 15.0  # between two "still waiting" lines in a pipe
_MATRIX_S = 0.25
_MOVED_S = 5.0  # slower signs than that are few: a sleepy rank's reads


@dataclass(frozen=True, slots=True)
class Healthy:
    """The server answers. ``seconds`` since its start; ``good`` is what a baseline remembers of it."""

    run: Run
    seconds: float
    summary: LogSummary
    good: GoodRun


@dataclass(frozen=True, slots=True)
class Stalled:
    """Nothing has moved for ``silent_s`` (``limit_s`` was allowed; good runs take ``usual_s`` for this step)."""

    run: Run
    silent_s: float
    limit_s: float
    usual_s: float | None
    summary: LogSummary


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds: ``timeout`` in all, ``stall_after`` without any sign of work (None: default).

    ``queue``: the wait for a place in Slurm's queue, which may take days, counts.
    """

    timeout: float = DEFAULT_TIMEOUT_S
    stall_after: float | None = None
    queue: bool = True


def wait_healthy(
    agents: Sequence[Agent],
    run: Run,
    *,
    baseline: Baseline,
    patience: Patience,
    emit: Emit,
    fresh: bool = True,
    nccl: str = "",
    api_key: str = "",
    modules: Sequence[str] = (),
    goes_on: Callable[[Stalled], bool] = lambda _: False,
    now: Callable[[], float] = time.monotonic,
) -> Healthy | Stalled:
    """Watch ``run`` until it is healthy or stalls.

    Args:
        agents: of its hosts, by node rank.
        fresh, nccl: for the first event.
        api_key: for the probes.
        modules: of SGLang, those that define the served model's class; with hs-dump they must be importable.
        goes_on: asked at a stall; True means that it is only slow, and twice the silence is allowed from then on.

    Raises:
        UnhealthyError: a process of it ended, a rank does not capture, it does not take ``api_key``, or
            ``patience.timeout`` is over.
    """
    watch = Watch(run, baseline, floor=patience.stall_after, now=now(), modules=modules)
    hosts = [agent.host.name for agent in agents]
    followed = RunFollowed(run.server, " + ".join(hosts), run.id, run.tp, run.port, run.pid, nccl, fresh)
    pace = _Pace(watch, emit, now, followed, patience)
    with closing(_reconnecting(agents, watch, api_key, pace, now=now)) as judgements:
        for judgement in judgements:
            if judgement is not None:
                pace.show(force=True)
                found = _conclude(watch, judgement, hosts[0])
                if isinstance(found, Healthy) or not goes_on(found):
                    return found
                watch.be_patient(2 * found.limit_s)
            if pace.left_s < 0:
                raise _too_late(watch, patience.timeout, hosts[0], now())
    raise AssertionError("the agent's stream ended without a result")


def _reconnecting(
    agents: Sequence[Agent], watch: Watch, api_key: str, pace: _Pace, *, now: Callable[[], float]
) -> Generator[Judgement | None, None, None]:
    """``_judgements`` over a link that may break: the server does not care, so the watch goes on where it was."""

    def lost(error: HsopsError, wait: float) -> None:
        if wait > pace.left_s:
            raise error
        pace.tell(iter([Note(f"{error.message}; trying again in {wait:g} s", agents[0].host.name, "warn")]))

    try:
        yield from reattaching(lambda: _judgements(agents, watch, api_key, pace, now), Retry(patience=math.inf), lost)
    except UnreachableError as error:
        error.fix = f"the server stays, as run {watch.run.id}; hsops launch --wait-healthy picks it up"
        raise


def _judgements(
    agents: Sequence[Agent], watch: Watch, api_key: str, pace: _Pace, now: Callable[[], float]
) -> Generator[Judgement | None, None, None]:
    """What it has come to, at least every few hundred milliseconds."""
    probes: queue.SimpleQueue[tuple[Probe, Ladder]] = queue.SimpleQueue()
    yield from _queued(agents[0], watch, pace, now)
    where = [agent.at(watch.run) for agent in agents]
    with (
        where[0].tunnel(watch.run.port) as port,
        Prober(port, api_key=api_key, report=lambda probe, ladder: probes.put((probe, ladder))) as prober,
        follow(where, watch.run.id, watch.at) as events,
    ):
        watch.reattached(now())
        for event in events:
            pace.tell(watch.take(event, now()))
            if watch.port_is_open:
                prober.port_is_open()
            while not probes.empty():
                pace.tell(watch.probed(*probes.get()))
            pace.show()
            judgement = watch.judge(now())
            if isinstance(judgement, Died) and watch.run.job:
                _decided(agents[0], watch)
            yield judgement


def _queued(agent: Agent, watch: Watch, pace: _Pace, now: Callable[[], float]) -> Generator[None, None, None]:
    """Until a run that is a job has its place, or is over; nothing for any other."""
    run = (find_run(agent, watch.run) if watch.run.job else None) or watch.run
    before, began = pace.queued_s, now()
    for seen in wait_for_place(agent, run, pace.emit):
        run, pace.queued_s = seen, before + now() - began
        if run.job:
            watch.placed(run)
        yield None
    pace.follow(run)


def _decided(agent: Agent, watch: Watch) -> None:
    """A server has ended whose job may be started again by Slurm: then the watch goes on, from the queue.

    Raises:
        UnreachableError: so it is.
    """
    run = settled(agent, watch.run)
    if run.job and (run.pending or run.job.restarts > (watch.run.job.restarts if watch.run.job else 0)):
        raise UnreachableError(f"{run.server} has ended, and Slurm starts it again: {run.job}", host=agent.host.name)
    watch.placed(run, ended=True)


class _Pace:
    """What is told beside the events themselves: the matrix for a terminal, a line now and then for a pipe."""

    def __init__(
        self, watch: Watch, emit: Emit, now: Callable[[], float], followed: RunFollowed, patience: Patience
    ) -> None:
        self._watch, self.emit, self._now = watch, emit, now
        self._began, self._patience = now(), patience
        self._followed: RunFollowed | None = followed
        self.queued_s = 0.0  # in Slurm's queue
        self._next_matrix, self._next_waiting = 0.0, now() + _WAITING_S

    @property
    def left_s(self) -> float:
        """Of ``patience.timeout``."""
        queued = 0.0 if self._patience.queue else self.queued_s
        return self._began + self._patience.timeout + queued - self._now()

    def follow(self, run: Run) -> None:
        """It is followed from now on; told once."""
        if self._followed:
            self.emit(replace(self._followed, port=run.port, pid=run.pid))
            self._followed = None

    def tell(self, events: Iterator[Any]) -> None:
        """Events of the watch; each puts the next "still waiting" off."""
        for event in events:
            self.emit(event)
            self._next_waiting = self._now() + _WAITING_S

    def show(self, *, force: bool = False) -> None:
        """The matrix when it is due, and a sign of life when nothing was told for a while."""
        now, watch = self._now(), self._watch
        if force or now >= self._next_matrix:
            self._next_matrix = now + _MATRIX_S
            self.emit(matrix(watch, now=now))
        if now >= self._next_waiting:
            self._next_waiting = now + _WAITING_S
            upcoming = watch.summary.next
            behind = watch.summary.missing(upcoming) if upcoming else ()
            missing = tuple(map(watch.run.named, behind)) if len(behind) < watch.summary.tp else ()
            silent = round(watch.signs.silent_s(now), 1)
            stage = watch.summary.stage
            told = doing(watch, now=now)
            self.emit(Waiting(stage, missing, silent, watch.limit_s, watch.summary.lines, watch.remaining_s, told))


def _conclude(watch: Watch, judgement: Judgement, host: str) -> Healthy | Stalled:
    if isinstance(judgement, Died):
        raise _died(watch.run, judgement, watch.run.host_of(judgement.who) or host)
    if isinstance(judgement, CaptureRefused):
        raise UnhealthyError(
            judgement.reason,
            host=host,
            why="the server runs, but rows would be missing from the dumps",
            fix=judgement.fix.replace("<name>", watch.run.server),
        )
    if isinstance(judgement, KeyWanted):
        raise UnhealthyError(
            f"{watch.run.server} is up and refuses hsops: {judgement.path} says {judgement.status}",
            host=host,
            why="it wants an API key; hsops shows the one of its run's command line",
            fix=f"give it as api-key in args of servers.{watch.run.server}, then hsops launch --replace --wait-healthy",
        )
    if isinstance(judgement, Silent):
        return Stalled(watch.run, judgement.silent_s, judgement.limit_s, watch.usual_step_s, watch.summary)
    assert isinstance(judgement, Answering)
    good = good_run(
        watch.summary,
        run=watch.run.id,
        spec_hash=watch.run.spec_hash,
        sglang=watch.run.sglang,
        started=watch.run.started,
        now=watch.host_now,
        utc_offset=watch.utc_offset,
        launched=launched(watch.run),
    )
    return Healthy(watch.run, watch.elapsed_s, watch.summary, good)


def _died(run: Run, died: Died, host: str) -> UnhealthyError:
    """The error of a death: the first line that says why, or, when none does, who ended and how.

    SGLang ends all of its processes when one has failed, mostly by SIGKILL: the first one gone is then not the culprit.
    """
    who = run.server if died.who == "server" else f"{died.who} of {run.server}"
    verb = "was" if died.exit and died.exit.signal else "ended:"
    gone = f"{who} {verb} {died.exit}" if died.exit else f"{who} ended, nobody saw how"
    if run.job and run.job.cause:
        fix = run.job.fix.replace("<name>", run.server)
        said = f"{run.server} ended: {run.job.cause}"
        return UnhealthyError(said, host=host, why=f"first to go: {gone}", fix=fix or f"hsops logs {run.id}")
    cause, last = died.summary.cause, died.summary.last.get("", (0, ""))
    if cause:
        on = f" on {cause.host}" if cause.host else ""
        place = ", ".join(part for part in (f"log line {cause.line}{on}", cause.rank, cause.frame) if part)
    if cause and (cause.role == "cause" or _uncaught(cause, died.exit)):
        message, why = f"{run.server} failed: {cause.said[:300]}", f"{place}; first to go: {gone}"
    elif cause:
        message, why = gone, f"the others then said: {cause.said[:300]} ({place})"
    else:
        message, why = gone, f"the log ends with: {last[1]}" if last[1] else "the log is empty"
    if run.job and run.job.last_words and not last[1]:
        why = f"the log is empty; the job's own output ends with: {run.job.last_words}"
    if refused := _not_again(run):
        why = f"{why}; not started again: {refused}"
    fix = f"hsops logs {run.id}; hsops diagnose" + ("; hsops stop" if run.alive else "")
    return UnhealthyError(without_keys(message), host=host, why=without_keys(why), fix=fix)


def _not_again(run: Run) -> str:
    """Why its restart policy does not help; "" without one."""
    if run.restarts and not run.served:
        return (
            run.not_restarted or "its restart policy is for a server that has served, and this one has never listened"
        )
    return run.not_restarted


def _uncaught(cause: LogError, exit_: Exit | None) -> bool:
    """A bare traceback beside a process that Python ended for one: its last words, not an echo of another's end."""
    return cause.id == "traceback" and exit_ is not None and exit_.code == 1


def _too_late(watch: Watch, timeout: float, host: str, now: float) -> UnhealthyError:
    if watch.run.pending:
        message = f"{watch.run.server} has no place after {timeout:g} s: {watch.run.job}"
        return UnhealthyError(
            message, host=host, fix="hsops launch --wait-healthy goes on waiting; hsops stop cancels it"
        )
    probe = watch.probe
    detail = f"; last probe {probe.path}: {probe.status or 'no connection'} {probe.detail}".rstrip() if probe else ""
    silent = watch.signs.silent_s(now)
    moved = "something moved a moment ago" if silent < _MOVED_S else f"nothing has moved for {silent:.0f} s"
    return UnhealthyError(
        f"{watch.run.server} is not healthy after {timeout:g} s, in '{watch.summary.stage}'{detail}",
        host=host,
        why=f"it still runs; {moved}, and {watch.limit_s:.0f} s are allowed for this step",
        fix="hsops launch --wait-healthy goes on waiting; hsops diagnose looks into it; hsops stop ends it",
    )
