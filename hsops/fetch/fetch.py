"""``hsops fetch``: look, plan, pull; again for what changed meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from hsops.core.events import Emit
from hsops.core.garbage import seldom_sought
from hsops.core.worker import Worker
from hsops.fetch.evict import Evictor, NoEviction
from hsops.fetch.folder import Folder, Layout, open_folder
from hsops.fetch.line import ways
from hsops.fetch.pieces import Pieces
from hsops.fetch.plan import File, Plan
from hsops.fetch.prepare import prepare
from hsops.fetch.pull import Pulled, Wish, pull
from hsops.fetch.trouble import Trouble, local_error, only_copy
from hsops.remote.agent import Agent

ROUNDS = 3
_WORTH_ANOTHER_LOOK = ("changed", "checksum", "missing", "open")  # the host may tell something newer by now


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

    def follow(self, stop: threading.Event) -> Iterator[dict[str, File]]:
        """After a look: what is new in it, as it comes, until nothing more will come or ``stop`` is set."""
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
        evicted, evicted_bytes: files that were removed on the host.
        ledger: where that is written down.
        kept: those that were to be, and stay there: why, by id.
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
    evicted: int
    evicted_bytes: int
    ledger: str
    kept: Mapping[str, str]
    troubles: tuple[Trouble, ...]
    seconds: float

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(f.bytes for f in self.files.values())

    def after(self, earlier: Fetched) -> Fetched:
        """This one, of a folder that was fetched before: what both did."""
        return replace(
            self,
            fetched=earlier.fetched + self.fetched,
            bytes_sent=earlier.bytes_sent + self.bytes_sent,
            lost_streams=earlier.lost_streams + self.lost_streams,
            bad_checksums=earlier.bad_checksums + self.bad_checksums,
            streams=max(earlier.streams, self.streams),
            channel=self.channel or earlier.channel,
            evicted=earlier.evicted + self.evicted,
            evicted_bytes=earlier.evicted_bytes + self.evicted_bytes,
            ledger=self.ledger or earlier.ledger,
            seconds=earlier.seconds + self.seconds,
        )


def fetch(agent: Agent, source: Source, to: Path, wish: Wish, emit: Emit) -> Fetched:
    """Bring every file of the host's folder that is not here yet.

    Args:
        agent: on the host.
        source: the folder there.
        to: the local folder.
        wish: how.
        emit: told the progress.

    Raises:
        HsopsError: the host's folder cannot be read; see also ``pull``.
        LockedError: another fetch writes to ``to``.
        SpaceError: it will not fit.
        BadDataError: ``to`` has dumps of other prompts under the same ids.
    """
    with seldom_sought():
        return _fetch(agent, source, to, wish, emit)


def _fetch(agent: Agent, source: Source, to: Path, wish: Wish, emit: Emit) -> Fetched:
    started = time.monotonic()
    first = source.look()  # before anything is made here: a host that cannot be used leaves no folder
    with open_folder(to, source.layout) as folder:
        work = _Fetch(agent, source, folder, wish, emit)
        files = work.run(first)
    pulls, troubles = work.pulls, (*work.only_here.values(), *work.pulls[-1].troubles, *source.refused)
    missed = {t.id for t in troubles}
    return Fetched(
        files={name: f for name, f in files.items() if f.id not in missed},
        fetched=sum(p.whole for p in pulls),
        bytes_sent=sum(p.bytes for p in pulls),
        lost_streams=sum(p.lost_streams for p in pulls),
        bad_checksums=sum(p.bad_checksums for p in pulls),
        streams=max(p.streams for p in pulls),
        channel=work.channel,
        evicted=work.evictor.files,
        evicted_bytes=work.evictor.bytes,
        ledger=str(work.evictor.ledger) if work.evictor.files else "",
        kept=work.evictor.kept,
        troubles=troubles,
        seconds=time.monotonic() - started,
    )


class _Fetch:
    """One fetch: looks at the host's folder again for what changed while it was pulled."""

    def __init__(self, agent: Agent, source: Source, folder: Folder, wish: Wish, emit: Emit) -> None:
        self._agent, self._source, self._folder = agent, source, folder
        self._wish, self._emit = wish, emit
        self.evictor = Evictor(agent, source.path, folder, emit) if wish.evict else NoEviction()
        self.pulls: list[Pulled] = []
        self.only_here: dict[str, Trouble] = {}  # by name
        self.channel = ""

    def run(self, files: dict[str, File]) -> dict[str, File]:
        """Bring them, and have those removed that are to be; returns all that the host has."""
        try:
            files = self._rounds(files)
            self.evictor.finish()
        except OSError as error:
            self.evictor.drop()
            raise local_error(error, self._folder.path) from None
        except BaseException:  # Ctrl-C, too
            self.evictor.drop()
            raise
        return files

    def _rounds(self, files: dict[str, File]) -> dict[str, File]:
        """Look, plan and pull until nothing is left that another look could bring."""
        for number in range(ROUNDS):
            if number:
                files = self._source.look()
            recheck = self._wish.recheck and not number
            todo = prepare(self._folder, files, self._folder.read(), emit=self._emit, recheck=recheck)
            self.only_here = {f.name: only_copy(f) for f in todo.only_here}
            self.evictor.put([*todo.done, *todo.adopt])
            if self._wish.follow and not number:
                files = self._follow(todo, files)
            elif todo.transfers:
                self._pull(Pieces(todo.transfers), todo.bytes_to_send)
            else:
                self.pulls.append(Pulled())  # a newer look settled what was in trouble before
            if not any(t.code in _WORTH_ANOTHER_LOOK for t in (*self.pulls[-1].troubles, *self._source.refused)):
                break
        return files

    def _follow(self, todo: Plan, files: dict[str, File]) -> dict[str, File]:
        """Pull while the host writes; returns all that was there."""
        pieces, stop, known = Pieces(todo.transfers, closed=False), threading.Event(), dict(files)
        feeder = Worker(lambda: self._feed(pieces, known, stop), "fetch-follow")
        feeder.start()
        try:
            self._pull(pieces, None)
        finally:
            stop.set()
        feeder.join()
        feeder.check()
        return known

    def _feed(self, pieces: Pieces, known: dict[str, File], stop: threading.Event) -> None:
        try:
            for files in self._source.follow(stop):
                new = {name: f for name, f in files.items() if known.get(name) != f}
                if new:
                    todo = prepare(self._folder, new, self._folder.look(new), emit=self._emit)
                    known.update(new)
                    self.only_here.update({f.name: only_copy(f) for f in todo.only_here})
                    pieces.add(todo.transfers)
                    self.evictor.put([*todo.done, *todo.adopt])
        finally:
            pieces.close()

    def _pull(self, pieces: Pieces, size: int | None) -> None:
        with ways(self._agent, self._source.path, self._wish.way, size, self._emit) as found:
            name, durable = self._agent.host.name, self.evictor.came
            self.pulls.append(pull(found, name, self._folder, pieces, self._wish, emit=self._emit, durable=durable))
            self.channel = found.name
