"""``hsops extract``: plan against the manifests, send what is missing to whichever server takes it, await the lines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from hsops.core.dumps import Sample, latest
from hsops.core.errors import ConfigError, HsopsError, UsageError
from hsops.core.events import Emit, Note
from hsops.core.prompts import Prompt, shorten
from hsops.extract.job import Extracted, Job, ServerRow
from hsops.extract.journal import Journal, only_one
from hsops.extract.lane import Lane
from hsops.extract.place import Place
from hsops.extract.plan import Plan, plan, row_size
from hsops.extract.pool import Failure, Pool, Tally
from hsops.extract.progress import Pulse
from hsops.extract.settle import settle
from hsops.extract.tokenized import keep
from hsops.remote.dumps import Listing
from hsops.remote.tokenizer import tokenise

TICK_S = 0.5


def extract(job: Job, emit: Emit) -> Extracted:
    """Get a dump for every prompt that has none yet.

    Raises:
        UsageError: the servers do not capture the same, or not of one model.
        UnhealthyError: no server is healthy.
        ConfigError: prompts whose ids have dumps of something else, or that a server cannot take.
        LockedError: another extract sends this file to one of the servers.
        UnreachableError: a host, whose manifest nobody else knows.
    """
    started, chats = time.monotonic(), any(prompt.messages for prompt in job.prompts)
    _same_capture(job)
    lanes = [_lane(job, place, emit) for place in job.places]
    with ExitStack() as stack:
        for place in job.places if job.journal else ():
            assert job.journal
            stack.enter_context(only_one(job.journal, place.server, job.file))
        listings = {lane.name: lane.standing.look() for lane in lanes}
        journal, pool, interrupted = Journal(None, emit), None, False
        if not all(prompt.tokens for prompt in job.prompts) or plan_of(job, listings).todo:
            job = replace(job, prompts=_settled(job, lanes, emit))
        keep(job.tokenized, job.prompts, emit, made=chats)
        if todo := plan_of(job, listings).todo:
            journal = Journal(job.journal, emit)
            stack.callback(journal.close)
            pool = Pool(todo, journal)
            _warn_of_space(job, listings, todo, emit)
            _expect(job, listings, lanes)
            interrupted = _drive(job, pool, lanes, emit)
        failures = _told(pool, journal) if pool else ()
    done = _summary(job, listings, lanes, pool, interrupted=interrupted)
    return replace(done, failures=failures, seconds=time.monotonic() - started)


def _lane(job: Job, place: Place, emit: Emit) -> Lane:
    return Lane(
        place,
        emit,
        file=str(job.file),
        concurrency=job.concurrency,
        relaunch=job.relaunch,
        patience=job.patience,
        home=job.drained.now if job.drained else dict,
    )


def _expect(job: Job, listings: dict[str, Listing], lanes: Sequence[Lane]) -> None:
    """Tell each lane which of the dumps that are done already its server holds."""
    for sample in plan_of(job, listings).done:
        for lane in lanes:
            if listings[lane.name].samples.get(sample.id) is sample:
                lane.has.add(sample.id)


def plan_of(job: Job, listings: dict[str, Listing]) -> Plan:
    """The plan; prompts whose tokens are not known yet are left to do. A dump of any of the servers, or here, counts.

    Raises:
        ConfigError: an id has a dump of something else.
    """
    known = [prompt for prompt in job.prompts if prompt.tokens]
    manifests = [listing.samples for listing in listings.values()] + ([job.drained.home] if job.drained else [])
    samples = latest(sample for manifest in manifests for sample in manifest.values())
    where = partial(_folders, job, listings)
    todo = plan(known, samples, job.places[0].capture, file=str(job.file), where=where)
    if todo.faults:
        fix = "give these prompts other ids; or, if the old dumps are not wanted, rm manifest.jsonl *.safetensors there"
        raise ConfigError(shorten(list(todo.faults)), fix=fix)
    return todo


def _folders(job: Job, listings: Mapping[str, Listing], sample: Sample) -> str:
    """All that hold this dump: one that was fetched may still be on its host."""
    found = [
        f"{place.agent.host.name}:{place.folder}"
        for place in job.places
        if listings[place.server].samples.get(sample.id) == sample
    ]
    if job.drained and job.drained.home.get(sample.id) == sample:
        found.append(str(job.drained.folder))
    return " and ".join(found)


def _settled(job: Job, lanes: Sequence[Lane], emit: Emit) -> tuple[Prompt, ...]:
    """The prompts with their tokens, which every server that is well can take.

    Raises:
        HsopsError: none is well.
    """
    prompts, failed = job.prompts, list[tuple[Lane, HsopsError]]()
    for lane in lanes:
        found = _settle_or_not(job, lane, prompts, emit)
        if isinstance(found, HsopsError):
            failed.append((lane, found))
        else:
            prompts = found
    if len(failed) < len(lanes):
        for lane, error in failed:
            emit(Note(f"{lane.name} takes no part yet: {error.message}", lane.standing.host, "warn"))
        _same_model(lanes)
        return prompts
    for lane, error in failed:
        if lane.revive(error, _wait):
            return _settle(job, lane, prompts, emit)
    raise failed[0][1]


def _settle_or_not(job: Job, lane: Lane, prompts: tuple[Prompt, ...], emit: Emit) -> tuple[Prompt, ...] | HsopsError:
    try:
        return _settle(job, lane, prompts, emit)
    except ConfigError:
        raise
    except HsopsError as error:
        return error


def _settle(job: Job, lane: Lane, prompts: tuple[Prompt, ...], emit: Emit) -> tuple[Prompt, ...]:
    own = partial(tokenise, lane.standing.agent, emit=emit, env=lane.standing.place.env)
    with lane.standing.connected() as server:
        found = settle(server, prompts, lane.standing.ask_limits(server), file=str(job.file), own=own)
        lane.standing.found_well()
    lane.checked = True
    return found


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def _same_capture(job: Job) -> None:
    captures = {place.capture: place.server for place in job.places}
    if len(captures) > 1:
        told = "; ".join(f"{server} captures {capture}" for capture, server in captures.items())
        raise UsageError(f"these servers do not capture the same: {told}", fix="name servers with one hs-dump patch")


def _same_model(lanes: Sequence[Lane]) -> None:
    known = [(lane, lane.standing.limits) for lane in lanes if lane.standing.limits]
    sizes = {limits.vocabulary: lane.name for lane, limits in known if limits.vocabulary}
    if len(sizes) > 1:
        told = ", ".join(f"{name} has a vocabulary of {size:,}" for size, name in sizes.items())
        raise UsageError(f"these servers do not serve one model: {told}", fix="name servers of one model")


def _drive(job: Job, pool: Pool, lanes: Sequence[Lane], emit: Emit) -> bool:
    """Drive all lanes; whether Ctrl-C ended it."""
    pulse = Pulse(job.prompts, pool.prompts)
    try:
        for lane in lanes:
            lane.start(pool)
        while alive := [lane for lane in lanes if not lane.over]:
            if pool.settled and all(lane.reviving for lane in alive):
                break  # a server whose launch takes minutes is not needed any more
            alive[0].join(TICK_S)
            if job.drained:
                job.drained.check()
            if not pool.settled and (sending := [lane for lane in lanes if lane.sending]):
                short = [lane.name for lane in sending if lane.is_short]
                full = max(lane.full for lane in sending)
                emit(pulse.at(pool.total(), len(pool.failures), short, full))
    except KeyboardInterrupt:
        return True
    finally:
        pool.close()
        emit(pulse.at(pool.total(), len(pool.failures)))
    return False


def _told(pool: Pool, journal: Journal) -> tuple[Failure, ...]:
    """The failures in the file's order, each with all that is known of it."""
    prompts = {prompt.id: prompt for prompt in pool.prompts}
    failures = [replace(failure, tried=journal.attempts(prompts[failure.id])) for failure in pool.failures]
    return tuple(sorted(failures, key=lambda failure: failure.line))


def _summary(
    job: Job, listings: dict[str, Listing], lanes: Sequence[Lane], pool: Pool | None, *, interrupted: bool
) -> Extracted:
    done = plan_of(job, listings).done
    new, old = pool.total() if pool else Tally(), Tally()
    for sample in done:
        old = old.plus(sample)
    total = Tally.sum((old, new))
    ids = {sample.id for sample in done}
    return Extracted(
        prompts=len(job.prompts),
        already=old.samples,
        samples=total.samples,
        tokens=total.tokens,
        bytes=total.bytes,
        servers=tuple(_row(lane, pool, _of_these(listings[lane.name].samples.values(), ids)) for lane in lanes),
        driving_s=pool.seconds if pool else 0.0,
        interrupted=interrupted,
        stopped=_stopped(job, pool, lanes, total.samples) if not interrupted else None,
    )


def _of_these(samples: Iterable[Sample], ids: set[str]) -> int:
    return sum(1 for sample in samples if sample.ok and sample.id in ids)


def _row(lane: Lane, pool: Pool | None, already: int) -> ServerRow:
    tally, standing = pool.tally(lane.name) if pool else Tally(), lane.standing
    return ServerRow(
        server=lane.name,
        host=standing.host,
        folder=standing.folder,
        run=standing.run.id if standing.run and tally.samples else "",
        already=already,
        samples=tally.samples,
        tokens=tally.tokens,
        bytes=tally.bytes,
        relaunched=lane.relaunched,
        lost=tuple(lane.lost),
        error=lane.error.message if lane.error else "",
        verdict=standing.finding.verdict if standing.finding else None,
    )


def _stopped(job: Job, pool: Pool | None, lanes: Sequence[Lane], done: int) -> HsopsError | None:
    """Why prompts are left: the error of the server that was lost last. Or why some are not done any more."""
    if emptied := next((lane.emptied for lane in lanes if lane.emptied), None):
        return emptied
    if pool is None or pool.settled:
        return None
    lane = next(lane for lane in reversed(lanes) if lane.error)
    error = lane.error
    assert error
    found = lane.standing.finding
    said = [error.why, found.words if found else "", f"{done:,} of {len(job.prompts):,} are done"]
    error.why = "; ".join(filter(None, said))
    return error


def _warn_of_space(job: Job, listings: dict[str, Listing], todo: tuple[Prompt, ...], emit: Emit) -> None:
    size = next(filter(None, (row_size(listing.samples.values()) for listing in listings.values())), None)
    need = sum(size.sample_bytes(p.count, job.places[0].capture) for p in todo) if size else 0
    free = sum(listing.free for listing in listings.values())
    if need > free and not job.drained:
        where = " and ".join(place.folder for place in job.places)
        message = f"{need:,} bytes are to come, {where} has {free:,} free: it waits when that is full, "
        message += "until hsops fetch --follow --evict makes room"
        emit(Note(message, job.places[0].agent.host.name, "warn"))
