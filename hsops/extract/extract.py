"""``hsops extract``: plan against the manifest, send what is missing, wait for every line."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hsops.core.deadline import QUICK
from hsops.core.dumps import Sample
from hsops.core.errors import ConfigError, HsopsError, UnhealthyError
from hsops.core.events import Emit, Note
from hsops.core.meter import Meter
from hsops.core.prompts import Prompt, shorten
from hsops.core.runs import Run
from hsops.core.worker import Worker
from hsops.extract.drive import Drive, Failure
from hsops.extract.ledger import PATIENCE_S, Ledger
from hsops.extract.plan import Capture, Plan, plan, row_size
from hsops.extract.settle import Limits, limits_of, settle
from hsops.remote.agent import Agent
from hsops.remote.dumps import Listing, News, follow, list_samples
from hsops.remote.runs import alive_run, list_runs, need_capture
from hsops.remote.server import Server

TICK_S = 0.5
DIAGNOSE = "hsops diagnose says why; then hsops launch --wait-healthy and the same extract again: it continues"


@dataclass(frozen=True, slots=True)
class Job:
    """What is wanted.

    Args:
        server: the server's name.
        folder: its dump folder on the host, unless its run says otherwise.
        file: name of the prompts file.
        prompts: of it, in order.
        capture: what a dump must hold.
        concurrency: prompts under way at once.
        patience: seconds that the host's file system may stay full.
    """

    server: str
    folder: str
    file: Path
    prompts: tuple[Prompt, ...]
    capture: Capture
    concurrency: int
    patience: float = PATIENCE_S


@dataclass(frozen=True, slots=True)
class Extracted:
    """What an extract did.

    Args:
        prompts: how many were asked for.
        already: how many had their dump before.
        samples, tokens, bytes: dumps that are there now, of these prompts.
        failures: prompts without a dump.
        folder: where the dumps are on the host.
        run: id of the run that wrote the new ones; empty when there was nothing to do.
        seconds: how long it took.
    """

    prompts: int
    already: int
    samples: int
    tokens: int
    bytes: int
    failures: tuple[Failure, ...]
    folder: str
    run: str
    seconds: float


def extract(agent: Agent, job: Job, emit: Emit) -> Extracted:
    """Get a dump for every prompt that has none yet.

    Raises:
        UnhealthyError: no run, not healthy, or it died or hung meanwhile; what is done is kept.
        ConfigError: prompts whose ids have dumps of something else, or that the server cannot take.
        SpaceError: the dump file system is full; what is done is kept.
    """
    started = time.monotonic()
    run = alive_run(agent, job.server)
    folder = run.dump_dir if run and run.dump_dir else job.folder
    listing = list_samples(agent, folder)
    drive = None
    if any(prompt.text for prompt in job.prompts) or plan_of(job, listing).todo:
        run = need_capture(agent, job.server, run)
        with agent.tunnel(run.port) as port, _server(port, agent, job, run) as server:
            _must_capture(run, agent.host.name)
            prompts = settle(server, job.prompts, _limits(agent, run, server), file=str(job.file))
            job = replace(job, folder=folder, prompts=prompts)
            drive = _drive(agent, job, listing, run, server=server, emit=emit)
    done = plan_of(job, listing).done
    samples: list[Sample] = [*done, *(drive.samples if drive else ())]
    return Extracted(
        prompts=len(job.prompts),
        already=len(done),
        samples=len(samples),
        tokens=sum(s.tokens for s in samples),
        bytes=sum(s.bytes for s in samples),
        failures=tuple(sorted(drive.failures, key=lambda f: f.line)) if drive else (),
        folder=folder,
        run=run.id if run and drive else "",
        seconds=time.monotonic() - started,
    )


def plan_of(job: Job, listing: Listing) -> Plan:
    """The plan; prompts whose tokens are not known yet are left to do.

    Raises:
        ConfigError: an id has a dump of something else.
    """
    known = [prompt for prompt in job.prompts if prompt.tokens]
    todo = plan(known, listing.samples, job.capture, file=str(job.file))
    if todo.faults:
        fix = "give these prompts other ids, or remove the old dumps on the host together with their manifest lines"
        raise ConfigError(shorten(list(todo.faults)), fix=fix)
    return todo


def _drive(agent: Agent, job: Job, listing: Listing, run: Run, *, server: Server, emit: Emit) -> Drive:
    todo = plan_of(job, listing).todo
    space = {"free": listing.free, "total": listing.total}
    ledger = Ledger(job.capture, listing.samples.values(), **space, patience=job.patience)
    _warn_of_space(job, listing, todo, emit, agent.host.name)
    drive = Drive(server, ledger, todo, lambda error: _examine(agent, run, server, error))
    meter, before = Meter("extract", "samples", len(job.prompts)), len(job.prompts) - len(todo)
    with _following(agent, job.folder, listing, run, ledger):
        drive.start(job.concurrency)
        try:
            while not drive.wait(TICK_S):
                if not drive.settled:
                    emit(meter.at(before + len(drive.samples), _detail(drive)))
        finally:
            drive.stop()
    emit(meter.at(before + len(drive.samples), _detail(drive)))
    if ledger.error is not None:
        ledger.error.why = _add(ledger.error.why, f"{before + len(drive.samples)} of {len(job.prompts)} are done")
        raise ledger.error
    return drive


@contextmanager
def _following(agent: Agent, folder: str, listing: Listing, run: Run, ledger: Ledger) -> Iterator[None]:
    """A thread that feeds the ledger while the context is open."""
    ended = threading.Event()

    def feed() -> None:
        try:
            with follow(agent, folder, position=listing.position, pid=run.pid) as news:
                for item in news:
                    if ended.is_set():
                        return
                    _take_in(item, agent, run, ledger)
        except HsopsError as error:
            ledger.fail(error)

    thread = Worker(feed, "extract-follow")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(2.0)  # it hears something four times a second
    thread.check()


def _take_in(item: News, agent: Agent, run: Run, ledger: Ledger) -> None:
    ledger.apply(item)
    if item.restarted:
        ledger.fail(
            HsopsError(
                "the dump folder was emptied or replaced while prompts were under way",
                host=agent.host.name,
                fix="run it again: it starts from what is there",
            )
        )
    if item.gone:
        ledger.fail(_death(agent, run))


def _examine(agent: Agent, run: Run, server: Server, error: HsopsError) -> None:
    """After a broken or missing answer: is the server still there and answering?

    Raises:
        UnhealthyError: no.
    """
    found = next((r for r in list_runs(agent, run.server) if r.id == run.id), None)
    if found is None or not found.alive:
        raise _death(agent, run)
    try:
        server.check_health()
    except UnhealthyError as unhealthy:
        raise UnhealthyError(
            f"the server stopped answering: {error.message}; {unhealthy.message}", host=agent.host.name, fix=DIAGNOSE
        ) from None


def _death(agent: Agent, run: Run) -> UnhealthyError:
    found = next((r for r in list_runs(agent, run.server) if r.id == run.id), None)
    how = f": {found.exit}" if found and found.exit else ""
    return UnhealthyError(f"run {run.id} of {run.server} died{how}", host=agent.host.name, fix=DIAGNOSE)


def _must_capture(run: Run, host: str) -> None:
    """Of a healthy server every rank has said by now whether it captures."""
    if run.capture_fault:
        raise UnhealthyError(
            f"run {run.id} would write no dumps: {run.capture_fault}",
            host=host,
            why="prompts would be computed, and nothing kept of them",
            fix=f"correct that, then hsops launch {run.server} --replace --wait-healthy",
        )


@contextmanager
def _server(port: int, agent: Agent, job: Job, run: Run) -> Iterator[Server]:
    with Server(port, host=agent.host.name, concurrency=job.concurrency, keys=run.keys) as server:
        server.check_health()
        yield server


def _limits(agent: Agent, run: Run, server: Server) -> Limits:
    words = (*run.argv, "", "")
    path = words[words.index("--model-path") + 1] if "--model-path" in words else ""
    return limits_of(run.server, server.info(), agent.call("model-read", deadline=QUICK, path=path))


def _warn_of_space(job: Job, listing: Listing, todo: tuple[Prompt, ...], emit: Emit, host: str) -> None:
    size = row_size(listing.samples.values())
    need = sum(size.sample_bytes(p.count, job.capture) for p in todo) if size else 0
    if need > listing.free:
        message = f"{need:,} bytes are to come, {job.folder} has {listing.free:,} free: it waits when that is full, "
        message += "until hsops fetch --follow --evict makes room"
        emit(Note(message, host, "warn"))


def _detail(drive: Drive) -> str:
    short = " · no room on the host: waiting for a fetch --evict" if drive.ledger.is_short else ""
    return f"{sum(s.tokens for s in list(drive.samples)):,} tokens · {len(drive.failures)} failed{short}"


def _add(why: str, more: str) -> str:
    return f"{why}; {more}" if why else more
