"""``hsops fetch``: look, plan, pull; again for what changed meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from hsops.core.checksum import checksum_of, kind_of, matches
from hsops.core.errors import BadDataError
from hsops.core.events import Emit
from hsops.core.inventory import Channel
from hsops.core.meter import Meter
from hsops.fetch.folder import Contents, Folder, Layout, check_space, open_folder
from hsops.fetch.line import ways
from hsops.fetch.pieces import Pieces
from hsops.fetch.plan import File, Held, Kept, Part, Plan, Transfer, plan
from hsops.fetch.pull import Pulled, Wish, pull
from hsops.fetch.stream import Trouble
from hsops.remote.agent import Agent

ROUNDS = 3
_WORTH_ANOTHER_LOOK = ("changed", "checksum", "missing")  # the host may tell something newer by now


class Source(Protocol):
    """A folder of files on the host."""

    @property
    def path(self) -> str:
        """The folder there."""
        ...

    @property
    def layout(self) -> Layout:
        """How its files lie here."""
        ...

    def look(self) -> dict[str, File]:
        """What is in it now, by name.

        Raises:
            HsopsError: it cannot be read.
        """
        ...

    @property
    def refused(self) -> tuple[Trouble, ...]:
        """What is in it and cannot be wanted: names that lead elsewhere, files that are still written."""
        ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch did.

    Args:
        files: those of the host that are now here, whole, by name.
        fetched: how many of them came just now; the others were here.
        bytes_sent: what came over the network.
        lost_streams: how often a stream had to be opened again.
        bad_checksums: how often something came with a wrong checksum and was sent again.
        streams: the most that were open at once.
        channel: how the bytes came at the end, ``direct`` or ``ssh``; empty when there were none.
        troubles: files that did not come.
        seconds: how long it took.
    """

    files: Mapping[str, File]
    fetched: int
    bytes_sent: int
    lost_streams: int
    bad_checksums: int
    streams: int
    channel: str
    troubles: tuple[Trouble, ...]
    seconds: float

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(f.bytes for f in self.files.values())


def fetch(
    agent: Agent, source: Source, to: Path, wish: Wish, *, recheck: bool, emit: Emit, way: Channel = "auto"
) -> Fetched:
    """Bring every file of the host's folder that is not here yet.

    Args:
        agent: on the host.
        source: the folder there.
        to: the local folder.
        wish: how many streams, and how fast.
        recheck: read every local file again instead of trusting its inode's times.
        emit: told the progress.
        way: by which the bytes come.

    Raises:
        HsopsError: the host's folder cannot be read; see also ``pull``.
        LockedError: another fetch writes to ``to``.
        SpaceError: it will not fit.
        BadDataError: ``to`` has dumps of other prompts under the same ids.
    """
    started = time.monotonic()
    first = source.look()  # before anything is made here: a host that cannot be used leaves no folder
    with open_folder(to, source.layout) as folder:
        work = _Fetch(agent, source, folder, way=way, wish=wish, emit=emit)
        files = work.rounds(first, recheck=recheck)
    pulls, troubles = work.pulls, (*work.pulls[-1].troubles, *source.refused)
    missed = {t.id for t in troubles}
    return Fetched(
        files={name: f for name, f in files.items() if f.id not in missed},
        fetched=sum(p.whole for p in pulls),
        bytes_sent=sum(p.bytes for p in pulls),
        lost_streams=sum(p.lost_streams for p in pulls),
        bad_checksums=sum(p.bad_checksums for p in pulls),
        streams=max(p.streams for p in pulls),
        channel=work.channel,
        troubles=troubles,
        seconds=time.monotonic() - started,
    )


class _Fetch:
    """One fetch: looks at the host's folder again for what changed while it was pulled."""

    def __init__(self, agent: Agent, source: Source, folder: Folder, *, way: Channel, wish: Wish, emit: Emit) -> None:
        self._agent, self._source, self._folder = agent, source, folder
        self._way, self._wish, self._emit = way, wish, emit
        self.pulls: list[Pulled] = []
        self.channel = ""

    def rounds(self, files: dict[str, File], *, recheck: bool) -> dict[str, File]:
        """Look, plan and pull until nothing is left that another look could bring."""
        for _ in range(ROUNDS):
            if self.pulls:
                files = self._source.look()
            todo = prepare(self._folder, files, recheck=recheck and not self.pulls, emit=self._emit)
            if not todo.transfers:
                self.pulls.append(Pulled(0, 0, 0, 0, 0, ()))  # a newer look settled what was in trouble before
                break
            self._pull(todo)
            if not any(t.code in _WORTH_ANOTHER_LOOK for t in self.pulls[-1].troubles):
                break
        return files

    def _pull(self, todo: Plan) -> None:
        with ways(self._agent, self._source.path, self._way, todo.bytes_to_send, self._emit) as found:
            pieces = Pieces(todo.transfers)
            self.pulls.append(pull(found, self._agent.host.name, self._folder, pieces, self._wish, emit=self._emit))
            self.channel = found.name


def prepare(folder: Folder, files: Mapping[str, File], *, recheck: bool, emit: Emit) -> Plan:
    """Plan, and settle all that needs no network: check files, tidy the manifest, remove stale parts.

    Raises:
        BadDataError: there are dumps of other prompts under the same ids.
        SpaceError: it will not fit.
    """
    contents = folder.read()
    if recheck:
        contents = replace(contents, held={n: Held(h.file, None) for n, h in contents.held.items()})
    todo = _plan(files, contents, {})
    if todo.conflicts:
        raise _conflict(todo.conflicts, folder)
    if todo.check:
        todo = _plan(files, contents, _check(folder, todo.check, emit))
    todo = replace(todo, transfers=_proved(folder, todo.transfers, emit))
    check_space(folder, todo.transfers)
    void = {f.name for f in todo.adopt} | {t.file.name for t in todo.transfers}
    if contents.untidy or void & set(contents.held):
        folder.forget(void)
    if todo.adopt:
        folder.adopt(todo.adopt)
    for part in todo.stale_parts:
        folder.drop(part)
    return todo


def _plan(files: Mapping[str, File], contents: Contents, checked: dict[str, bool]) -> Plan:
    return plan(files, contents.held, contents.files, contents.parts, checked)


def _check(folder: Folder, files: Iterable[File], emit: Emit) -> dict[str, bool]:
    """Read files whose inode says that they were touched, or that the manifest does not name."""
    files = list(files)
    meter, done, results = Meter("check", "bytes", sum(f.bytes for f in files)), 0, {}
    with ThreadPoolExecutor(2) as pool:  # the checksum runs without the interpreter's lock
        for file, good in zip(files, pool.map(lambda f: _is_whole(folder, f), files), strict=True):
            results[file.name], done = good, done + file.bytes
            emit(meter.at(done))
    return results


def _is_whole(folder: Folder, file: File) -> bool:
    try:
        return matches(folder.file(file), file.checksum)
    except (OSError, ValueError):  # gone or unreadable by now: to be sent again
        return False


def _proved(folder: Folder, transfers: Iterable[Transfer], emit: Emit) -> tuple[Transfer, ...]:
    """Read the pieces of part files again: a power cut may have taken what their lists promise."""
    transfers = tuple(transfers)
    total, done = sum(k.end - k.start for t in transfers for k in t.part.kept or ()), 0
    meter, proved = Meter("check", "bytes", total), list[Transfer]()
    for transfer in transfers:
        if not transfer.part.kept:
            proved.append(transfer)
            continue
        good = tuple(kept for kept in transfer.part.kept if _is_kept(folder, transfer.file, kept))
        done += sum(k.end - k.start for k in transfer.part.kept)
        emit(meter.at(done))
        proved.append(replace(transfer, part=Part(transfer.part.size, good)))
    return tuple(proved)


def _is_kept(folder: Folder, file: File, kept: Kept) -> bool:
    try:
        return checksum_of(folder.part(file), kind_of(kept.checksum), kept.start, kept.end) == kept.checksum
    except (OSError, ValueError):
        return False


def _conflict(ids: tuple[str, ...], folder: Folder) -> BadDataError:
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return BadDataError(
        f"{folder.path} has dumps of other prompts under the same ids: {', '.join(ids[:3])}{more}",
        why="they would be overwritten",
        fix="choose another --to DIR",
    )
