"""``hsops fetch``: list, plan, pull; again for what changed meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from hsops.core.checksum import matches
from hsops.core.dumps import Sample
from hsops.core.errors import BadDataError, HsopsError
from hsops.core.events import Emit, Note, ignore
from hsops.core.inventory import Channel
from hsops.core.meter import Meter
from hsops.fetch.folder import Contents, Folder, check_space, open_folder
from hsops.fetch.line import ways
from hsops.fetch.plan import Held, Plan, plan
from hsops.fetch.pull import Pulled, pull
from hsops.fetch.stream import Trouble
from hsops.remote.agent import Agent
from hsops.remote.dumps import Listing, list_samples

ROUNDS = 3
_WORTH_ANOTHER_LOOK = ("changed", "checksum")  # the manifest may have a newer line by now


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch did.

    Args:
        samples: dumps that the host's manifest has and that are now here, whole.
        tokens, bytes: of those.
        fetched: how many of them came just now; the others were here.
        bytes_sent: what came over the network.
        lost_streams: how often a stream had to be opened again.
        channel: how the bytes came at the end, ``direct`` or ``ssh``; empty when there were none.
        troubles: samples that did not come.
        failed: samples that failed on the host: id -> reason.
        seconds: how long it took.
    """

    samples: int
    tokens: int
    bytes: int
    fetched: int
    bytes_sent: int
    lost_streams: int
    channel: str
    troubles: tuple[Trouble, ...]
    failed: dict[str, str]
    seconds: float


def fetch(
    agent: Agent, source: str, to: Path, *, streams: int, recheck: bool, emit: Emit, way: Channel = "auto"
) -> Fetched:
    """Bring every dump of the host's manifest that is not here yet.

    Args:
        agent: on the host.
        source: the dump folder there.
        to: the local folder.
        streams: connections at once, at most.
        recheck: read every local file again instead of trusting its inode's times.
        emit: told the progress.
        way: by which the bytes come.

    Raises:
        HsopsError: the host has no manifest; see also ``pull``.
        LockedError: another fetch writes to ``to``.
        SpaceError: it will not fit.
        BadDataError: ``to`` has dumps of other prompts under the same ids.
    """
    started = time.monotonic()
    first = _list(agent, source, emit)  # before anything is made here: a host that cannot be used leaves no folder
    with open_folder(to) as folder:
        work = _Fetch(agent, source, folder, way=way, streams=streams, emit=emit)
        listing = work.rounds(first, recheck=recheck)
    pulls = work.pulls
    troubles = pulls[-1].troubles
    here = [s for s in listing.samples.values() if s.ok and s.id not in {t.id for t in troubles}]
    return Fetched(
        samples=len(here),
        tokens=sum(s.tokens for s in here),
        bytes=sum(s.bytes for s in here),
        fetched=sum(p.whole for p in pulls),
        bytes_sent=sum(p.bytes for p in pulls),
        lost_streams=sum(p.lost_streams for p in pulls),
        channel=work.channel,
        troubles=troubles,
        failed={s.id: s.reason for s in listing.samples.values() if not s.ok},
        seconds=time.monotonic() - started,
    )


class _Fetch:
    """One fetch: looks at the manifest again for what changed while it was pulled."""

    def __init__(self, agent: Agent, source: str, folder: Folder, *, way: Channel, streams: int, emit: Emit) -> None:
        self._agent, self._source, self._folder = agent, source, folder
        self._way, self._streams, self._emit = way, streams, emit
        self.pulls: list[Pulled] = []
        self.channel = ""

    def rounds(self, listing: Listing, *, recheck: bool) -> Listing:
        """List, plan and pull until nothing is left that another look at the manifest could bring."""
        for _ in range(ROUNDS):
            if self.pulls:
                listing = _list(self._agent, self._source, ignore)  # its bad lines were told the first time
            todo = _prepare(self._folder, listing, recheck=recheck and not self.pulls, emit=self._emit)
            if not todo.transfers:
                self.pulls.append(Pulled(0, 0, 0, ()))  # a newer manifest settled what was in trouble before
                break
            self._pull(todo, listing)
            if not any(t.code in _WORTH_ANOTHER_LOOK for t in self.pulls[-1].troubles):
                break
        return listing

    def _pull(self, todo: Plan, listing: Listing) -> None:
        with ways(self._agent, self._source, self._way, todo.bytes_to_send, self._emit) as found:
            host, streams = self._agent.host.name, self._streams
            self.pulls.append(
                pull(found, host, self._folder, todo.transfers, listing.lines, streams=streams, emit=self._emit)
            )
            self.channel = found.name


def _list(agent: Agent, source: str, emit: Emit) -> Listing:
    listing = list_samples(agent, source)
    if not listing.exists:
        raise HsopsError(
            f"there are no dumps: {source} has no manifest",
            host=agent.host.name,
            fix="hsops extract PROMPTS writes them; hosts.<name>.dumps in inventory.yaml says where",
        )
    for reason in listing.unreadable[:3]:
        emit(Note(f"a line of the manifest was left out: {reason}", agent.host.name, "warn"))
    return listing


def _prepare(folder: Folder, listing: Listing, *, recheck: bool, emit: Emit) -> Plan:
    """Plan, and settle all that needs no network: check files, tidy the manifest, remove stale parts."""
    contents = folder.read()
    if recheck:
        contents = replace(contents, held={i: Held(h.sample, None) for i, h in contents.held.items()})
    todo = _plan(listing, contents, {})
    if todo.conflicts:
        raise _conflict(todo.conflicts, folder)
    if todo.check:
        todo = _plan(listing, contents, _check(folder, todo.check, emit))
    check_space(folder, todo.bytes_to_send)
    void = {s.id for s in todo.adopt} | {t.sample.id for t in todo.transfers}
    if contents.untidy or void & set(contents.held):
        folder.forget(void)
    if todo.adopt:
        folder.adopt(todo.adopt, listing.lines)
    for name in todo.stale_parts:
        (folder.path / name).unlink(missing_ok=True)
    return todo


def _plan(listing: Listing, contents: Contents, checked: dict[str, bool]) -> Plan:
    return plan(listing.samples, contents.held, contents.files, contents.parts, checked)


def _check(folder: Folder, samples: Iterable[Sample], emit: Emit) -> dict[str, bool]:
    """Read files whose inode says that they were touched, or that the manifest does not name."""
    samples = list(samples)
    meter, done, results = Meter("check", "bytes", sum(s.bytes for s in samples)), 0, {}
    with ThreadPoolExecutor(2) as pool:  # the checksum runs without the interpreter's lock
        for sample, good in zip(samples, pool.map(lambda s: _is_whole(folder, s), samples), strict=True):
            results[sample.id], done = good, done + sample.bytes
            emit(meter.at(done))
    return results


def _is_whole(folder: Folder, sample: Sample) -> bool:
    try:
        return matches(folder.file(sample), sample.checksum)
    except OSError:  # gone or unreadable by now: to be sent again
        return False


def _conflict(ids: tuple[str, ...], folder: Folder) -> BadDataError:
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return BadDataError(
        f"{folder.path} has dumps of other prompts under the same ids: {', '.join(ids[:3])}{more}",
        why="they would be overwritten",
        fix="choose another --to DIR",
    )
