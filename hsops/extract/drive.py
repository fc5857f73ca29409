"""The workers of one server: each takes a prompt, sends it, and lets go of it only when the manifest has its line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from hsops.core.dumps import Sample
from hsops.core.errors import HsopsError
from hsops.core.prompts import Prompt
from hsops.core.worker import Worker
from hsops.extract.gate import Gate, Ticket
from hsops.extract.ledger import Ledger, TooLargeError
from hsops.extract.plan import difference
from hsops.extract.pool import Attempt, Item, Pool
from hsops.remote.server import BrokenError, BusyError, RejectedError, Server, SilentError

LINE_S = 30.0  # from HTTP 200 to the manifest's line; the writer needs milliseconds


class Drive:
    """What the workers of one server share.

    Args:
        name: the server's, for those who read of a failure.
        server: where prompts go.
        ledger: what comes of them.
        gate: how many requests and tokens may be under way.
        pool: where prompts come from.
        examine: called when the connection broke or the server is silent; raises when the server is dead or hung.
        known: the manifest before, by id.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        ledger: Ledger,
        gate: Gate,
        pool: Pool,
        *,
        examine: Callable[[HsopsError], None],
        known: Mapping[str, Sample],
    ) -> None:
        self.server, self.ledger, self._gate, self._pool, self._examine = server, ledger, gate, pool, examine
        self._name, self._lock, self._examining, self._known = name, threading.Lock(), threading.Lock(), known
        self._held: dict[str, Item] = {}
        self._workers: list[Worker] = []
        self._closed = False
        self.moved = time.monotonic()  # when an attempt last ended, however

    def start(self, count: int) -> None:
        """Start so many workers: more than may have a request under way, for those that wait for a line."""
        self._workers = [Worker(self._work, f"{self._name}-{i}") for i in range(count)]
        for worker in self._workers:
            worker.start()

    def wait(self, patience: float) -> bool:
        """Wait up to ``patience`` seconds; whether all workers ended."""
        alive = [worker for worker in self._workers if worker.is_alive()]
        for worker in self._workers:
            if worker not in alive:
                worker.check()
        if alive:
            alive[0].join(patience)
        return not alive

    @property
    def waits(self) -> bool:
        """Something was sent and has not come back."""
        return self._gate.inside > 0

    def stop(self) -> list[Item]:
        """No worker takes another prompt, and what those under way come to does not count any more: they are here."""
        with self._lock:
            self._closed = True
            held, self._held = list(self._held.values()), {}
        self._pool.wake()
        return held

    def _over(self) -> bool:
        return self._closed or self.ledger.error is not None

    def _work(self) -> None:
        try:
            while ticket := self._gate.ticket(self._over):
                with ticket:
                    item = self._take()
                    if item is None:
                        return
                    self._do(item, ticket)
        except HsopsError as error:
            self.ledger.fail(error)
            self._pool.wake()

    def _take(self) -> Item | None:
        item = self._pool.take(self._over, self._name)
        if item:
            with self._lock:
                if not self._closed:
                    self._held[item.prompt.id] = item
                    return item
            self._pool.give_back(item, self._name)
        return None

    def _do(self, item: Item, ticket: Ticket) -> None:
        attempt = Attempt(self._there(item.prompt))
        sent = attempt.sample is None
        if sent:
            if not ticket.enter(item.prompt.count, self._over):
                return  # ``stop`` hands it on
            attempt = self._admitted(item.prompt, ticket)
        self.moved = time.monotonic()
        with self._lock:
            mine = self._held.pop(item.prompt.id, None)
        if mine and sent:
            self._pool.settle(item, attempt, self._name)
        elif mine and attempt.sample:
            self._pool.found(item, attempt.sample, self._name)

    def _there(self, prompt: Prompt) -> Sample | None:
        """Its dump, if somebody else had it made meanwhile: an earlier attempt, or another machine."""
        sample = self.ledger.line(prompt.id) or self._known.get(prompt.id)
        return sample if sample and sample.ok and not difference(sample, prompt, self.ledger.capture) else None

    def _admitted(self, prompt: Prompt, ticket: Ticket) -> Attempt:
        try:
            self.ledger.admit(prompt.id, prompt.count)
        except TooLargeError as error:
            return Attempt(reason=error.message, final=True, sent=False)
        attempt = Attempt()
        try:
            attempt = self._attempt(prompt, ticket)
        finally:
            self.ledger.leave(prompt.id, attempt.sample.bytes if attempt.sample else 0)
        return attempt

    def _attempt(self, prompt: Prompt, ticket: Ticket) -> Attempt:
        mark = self.ledger.mark(prompt.id)
        try:
            self.server.generate(prompt)
        except RejectedError as error:
            return Attempt(reason=error.message, final=True)
        except BusyError as error:
            return Attempt(reason=error.message, busy=True)
        except (BrokenError, SilentError) as error:
            self._look(error)
            return Attempt(reason=error.message)
        ticket.leave()  # the server has room for the next one while the line of this one comes
        sample = self.ledger.wait(prompt.id, mark, LINE_S)
        if sample is None:
            return self._nothing_came()
        if not sample.ok:
            return Attempt(reason=sample.reason or "the capture failed without a reason")
        if why := difference(sample, prompt, self.ledger.capture):
            raise HsopsError(
                f"the dump of {prompt.id!r} came {why}",
                why="every further sample would be wrong in the same way",
                fix="hsops deploy && hsops launch --replace --wait-healthy",
            )
        return Attempt(sample)

    def _look(self, error: HsopsError) -> None:
        """Examine once for all the workers that a dying server breaks at the same moment."""
        with self._examining:
            if self.ledger.error is not None:
                raise self.ledger.error
            if self._closed:
                raise error
            try:
                self._examine(error)
            except HsopsError as found:
                self.ledger.fail(found)
                raise

    def _nothing_came(self) -> Attempt:
        message = f"the server answered, but no dump came in {LINE_S:.0f} s"
        if self.ledger.heard:
            return Attempt(reason=message)
        raise HsopsError(
            f"{message}, nor any before",
            why="its ranks capture nothing: the patch is not in this run, or gave up at start",
            fix="hsops deploy --status, then hsops stop && hsops launch --wait-healthy",
        )
