"""One server of an extract, in a thread of its own: driven, lost, started again, until nothing is left to send."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from hsops.core.dumps import Sample
from hsops.core.errors import (
    AuthenticationError,
    ConfigError,
    HostKeyError,
    HsopsError,
    UnhealthyError,
    UnreachableError,
)
from hsops.core.events import Emit, Note
from hsops.core.prompts import shorten
from hsops.core.worker import Worker
from hsops.extract.drive import Drive
from hsops.extract.gate import Gate
from hsops.extract.ledger import Ledger
from hsops.extract.place import Place, Standing
from hsops.extract.plan import difference
from hsops.extract.pool import Item, Pool
from hsops.extract.settle import refused
from hsops.remote.dumps import Listing, News, follow
from hsops.remote.server import Server, SilentError

TICK_S = 0.5
SILENT_S = 60.0  # something is under way and nothing came of anything: ask /health
LOSSES = 6  # of the link to a host, in a row with no sample between: a minute
BACKOFF_S, LONGEST_BACKOFF_S = 5.0, 300.0  # before a second relaunch; twice as long before each further one


class Lane:
    """Sends prompts of a pool to one server until none is left, or the server is lost for good.

    Args:
        place: the server.
        emit: told what happens.
        file: name of the prompts file, for faults.
        concurrency: requests at once.
        relaunch: how often the server may be started again.
        patience: seconds that its host's file system may stay full.
        home: dumps that are here by now, by id, and need not be on the host any more.
    """

    def __init__(
        self,
        place: Place,
        emit: Emit,
        *,
        file: str,
        concurrency: int,
        relaunch: int,
        patience: float,
        home: Callable[[], Mapping[str, Sample]] = dict,
    ) -> None:
        self.standing, self.name = Standing(place, concurrency, emit), place.server
        self._place, self._file, self._most, self._emit, self._patience = place, file, relaunch, emit, patience
        self._home = home
        self._ledger: Ledger | None = None
        self.relaunched, self._losses = 0, 0
        self._done = self._lost_at = self._waited_at = -1  # samples of this server: at present, at a loss, at a wait
        self.checked = False  # it takes every prompt of the pool
        self.sending = False
        self.reviving = False  # nothing is under way but its server's return
        self.error: HsopsError | None = None
        self.emptied: HsopsError | None = None  # dumps that count as done are gone: no success, whoever does the rest
        self.has = set[str]()  # ids of prompts that had their dump in its folder before
        self.lost: list[str] = []  # why, each time
        self._held: list[Item] = []
        self._thread: Worker | None = None

    def start(self, pool: Pool) -> None:
        """Drive it."""
        self._thread = Worker(lambda: self._go(pool), f"extract-{self.name}")
        self._thread.start()

    @property
    def over(self) -> bool:
        """Nothing more comes of it. Raises what nobody foresaw."""
        if self._thread and self._thread.is_alive():
            return False
        if self._thread:
            self._thread.check()
        return True

    @property
    def is_short(self) -> bool:
        """Nothing is under way there because its host is full."""
        return self._ledger is not None and self._ledger.is_short

    @property
    def full(self) -> float:
        """The used share of its host's dump file system, 0 to 1."""
        return self._ledger.full if self._ledger else 0.0

    def join(self, patience: float) -> None:
        """Wait for its thread, ``patience`` seconds at most."""
        if self._thread:
            self._thread.join(patience)

    def revive(self, error: HsopsError, pause: Callable[[float], bool]) -> bool:
        """After an error: is the server there again?

        Args:
            error: why it is lost.
            pause: waits so many seconds; False when nobody needs the server any more.
        """
        while True:
            self.error = error
            try:
                if not self._once_more(error, pause):
                    return False
            except HsopsError as failed:
                self._emit(Note(f"{self.name} did not come back: {failed.message}", self.standing.host, "warn"))
                error = failed if isinstance(failed, UnhealthyError | UnreachableError) else error
            else:
                self.error = None
                return True

    def _once_more(self, error: HsopsError, pause: Callable[[float], bool]) -> bool:
        if isinstance(error, UnreachableError) and not isinstance(error, HostKeyError | AuthenticationError):
            return self._reach(error, pause)
        if not isinstance(error, UnhealthyError):
            return False
        if self.standing.comes_back and self._waited_at != self._done:
            self._waited_at = self._done  # once, unless it has made something since
            self._emit(Note(f"{self.name} comes back by itself: waiting for it", self.standing.host))
            self._place.launch(False)
            return True
        if self.relaunched >= self._most:
            return False
        if self.relaunched and not pause(min(BACKOFF_S * 2.0**self.relaunched, LONGEST_BACKOFF_S)):
            return False
        self.relaunched += 1
        self._emit(Note(f"{self.name} is started again, {self.relaunched} of at most {self._most}", self.standing.host))
        replace = self.standing.hangs  # one that somebody else has started meanwhile is not ours to end
        try:
            self._place.launch(replace)
        except UnhealthyError:
            self.standing.waited()
            raise
        return True

    def _reach(self, error: HsopsError, pause: Callable[[float], bool]) -> bool:
        """A link that broke says nothing of the server: look for the host again, for a while."""
        self._losses = self._losses + 1 if self._lost_at == self._done else 1
        self._lost_at = self._done
        if self._losses > LOSSES:
            return False
        self._emit(Note(f"{error.message}; looking for the host again", self.standing.host, "warn"))
        return pause(min(2.0 ** (self._losses - 1), 16.0))

    # -- in its thread

    def _go(self, pool: Pool) -> None:
        while error := self._ended(pool):
            self.error, self._done = error, pool.tally(self.name).samples
            self._let_go(pool, error)
            self.error = self.emptied or error
            self.reviving = True
            if self.emptied or pool.settled or not self.revive(error, pool.pause):
                self._hand_on(pool, self._held, error)
                return
            self.reviving = False

    def _ended(self, pool: Pool) -> HsopsError | None:
        """Why it could not go on; None: it has nothing to do any more."""
        try:
            self._serve(pool)
        except HsopsError as error:
            return self.standing.told(error)
        finally:
            self.sending = False
        return None

    def _serve(self, pool: Pool) -> None:
        self.standing.finding = None
        listing = self.standing.look()
        self._sort(pool, listing)
        self._compare(pool, listing)
        if self.emptied:
            raise self.emptied
        with self.standing.connected() as server:
            limits = self.standing.ask_limits(server)
            if not self.checked and (faults := list(refused(pool.prompts, limits, file=self._file))):
                raise ConfigError(shorten(faults), fix=f"leave {self.name} out, or launch it with a larger context")
            self.checked = True
            space = {"free": listing.free, "total": listing.total}
            ledger = Ledger(self._place.capture, listing.samples.values(), **space, patience=self._patience)
            self._ledger = ledger
            drive = Drive(
                self.name,
                server,
                ledger,
                Gate(self.standing.requests, self.standing.tokens),
                pool,
                examine=lambda error: self.standing.examine(server, error),
                known=listing.samples,
            )
            with self._following(listing, ledger, pool):
                self._watch(drive, server, pool)
            if ledger.error is not None and not pool.settled:
                raise ledger.error

    def _watch(self, drive: Drive, server: Server, pool: Pool) -> None:
        """Until its workers have nothing to do any more; a server that is silent is asked how it is."""
        drive.start(min(2 * self.standing.requests, len(pool.prompts)))
        self.sending = True
        try:
            silent = SILENT_S
            while not drive.wait(TICK_S) and drive.ledger.error is None and not pool.settled:
                if not drive.waits or time.monotonic() - drive.moved < silent:
                    continue
                try:
                    self.standing.examine(server, SilentError(f"nothing came for {silent:.0f} s"))
                except HsopsError as error:
                    drive.ledger.fail(error)
                silent = time.monotonic() - drive.moved + SILENT_S
        finally:
            self._held += drive.stop()

    @contextmanager
    def _following(self, listing: Listing, ledger: Ledger, pool: Pool) -> Iterator[None]:
        """A thread that feeds the ledger while the context is open."""
        ended, run = threading.Event(), self.standing.run
        assert run
        agent = self.standing.agent.at(run)  # where the process is, and where each line is seen at once

        def feed() -> None:
            try:
                with follow(agent, self.standing.folder, position=listing.position, pid=run.pid) as news:
                    for item in news:
                        if ended.is_set():
                            return
                        self._take_in(item, ledger)
            except HsopsError as error:
                ledger.fail(error)
            finally:
                pool.wake()

        thread = Worker(feed, "extract-follow")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(2.0)  # it hears something four times a second
        thread.check()

    def _take_in(self, item: News, ledger: Ledger) -> None:
        ledger.apply(item)
        if item.restarted:
            ledger.fail(self._emptied("its manifest is another one"))
        if item.gone:
            ledger.fail(self.standing.death())

    def _compare(self, pool: Pool, listing: Listing) -> None:
        """What counts as done must still be there: nobody told of the folder while the link or the server was away."""
        gone = (self.has | pool.made(self.name)) - listing.samples.keys()
        if gone and (gone := gone - self._home().keys()):
            self._emptied(f"{len(gone):,} dumps that were there are not in its manifest any more, {min(gone)} for one")

    def _emptied(self, why: str) -> HsopsError:
        self.emptied = HsopsError(
            "the dump folder was emptied or replaced while prompts were under way",
            host=self.standing.host,
            why=why,
            fix="run it again: it starts from what is there",
        )
        return self.emptied

    # -- what was under way when the server was lost

    def _let_go(self, pool: Pool, error: HsopsError) -> None:
        """Say what happened; what has no dump goes to others, unless it is only the link that is lost."""
        self.lost.append(error.message)
        if isinstance(error, UnreachableError):
            return
        if isinstance(error, UnhealthyError) and self.standing.finding is None:
            self.standing.look_into()
        found = self.standing.finding
        self.lost[-1] += f"; {found.words}" if found else ""
        self._emit(Note(f"{self.name}: {self.lost[-1]}", self.standing.host, "warn"))
        try:
            listing = self.standing.look()
            self._sort(pool, listing, error)
            self._compare(pool, listing)
        except HsopsError as lost:
            self._emit(Note(f"{lost.message}: what {self.name} had under way may be there twice", level="warn"))
            self._hand_on(pool, self._held, error)

    def _sort(self, pool: Pool, listing: Listing, error: HsopsError | None = None) -> None:
        """Of what was under way: what has its dump after all is done, the rest is for whoever takes it."""
        rest = []
        for item in self._held:
            sample = listing.samples.get(item.prompt.id)
            if sample and sample.ok and not difference(sample, item.prompt, self._place.capture):
                pool.found(item, sample, self.name)
            else:
                rest.append(item)
        self._hand_on(pool, rest, error or HsopsError("the link to its host was lost"))

    def _hand_on(self, pool: Pool, items: Sequence[Item], error: HsopsError) -> None:
        pool.hand_on(items, self.name, error.message, died=isinstance(error, UnhealthyError))
        self._held = []
