"""Workers: each takes a prompt, sends it, and lets go of it only when the manifest has its line."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hsops.core.dumps import Sample
from hsops.core.errors import HsopsError
from hsops.core.prompts import Prompt
from hsops.core.worker import Worker
from hsops.extract.ledger import Ledger
from hsops.extract.plan import difference
from hsops.remote.server import BrokenError, RejectedError, Server, SilentError

ATTEMPTS = 3
LINE_S = 30.0  # from HTTP 200 to the manifest's line; the writer needs milliseconds


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that has no dump after all attempts.

    Args:
        id: the prompt.
        line: of the prompts file.
        attempts: how often it was sent.
        reason: of the last attempt.
    """

    id: str
    line: int
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one attempt ended: with a sample, or with a reason."""

    sample: Sample | None = None
    reason: str = ""
    final: bool = False  # sending it again will not help


class Drive:
    """The workers of one extract and what they share.

    Args:
        server: where prompts go.
        ledger: what comes of them.
        prompts: to send.
        examine: called when the connection broke or the server is silent; raises when the server is dead or hung.
    """

    def __init__(
        self, server: Server, ledger: Ledger, prompts: Sequence[Prompt], examine: Callable[[HsopsError], None]
    ) -> None:
        self.server, self.ledger, self._examine = server, ledger, examine
        self._todo, self._count, self._lock = deque(prompts), len(prompts), threading.Lock()
        self._stop, self._examining = threading.Event(), threading.Lock()
        self.samples: list[Sample] = []
        self.failures: list[Failure] = []
        self._workers: list[Worker] = []

    def start(self, concurrency: int) -> None:
        """Start the workers."""
        self._workers = [Worker(self._work, f"extract-{i}") for i in range(min(concurrency, len(self._todo)))]
        for worker in self._workers:
            worker.start()

    def wait(self, patience: float) -> bool:
        """Wait up to ``patience`` seconds; whether all workers ended."""
        alive = [worker for worker in self._workers if worker.is_alive()]
        if alive:
            alive[0].join(patience)
            return False
        for worker in self._workers:
            worker.check()
        return True

    @property
    def settled(self) -> bool:
        """Every prompt has its dump, or its failure."""
        return len(self.samples) + len(self.failures) == self._count

    def stop(self) -> None:
        """No worker takes another prompt."""
        self._stop.set()

    def _work(self) -> None:
        try:
            while not self._stop.is_set() and (prompt := self._take()):
                self._settle(prompt)
        except HsopsError as error:
            self.ledger.fail(error)

    def _take(self) -> Prompt | None:
        with self._lock:
            return self._todo.popleft() if self._todo else None

    def _settle(self, prompt: Prompt) -> None:
        attempt, count = Attempt(), 0
        while count < ATTEMPTS and attempt.sample is None and not attempt.final and not self._stop.is_set():
            attempt, count = self._admitted(prompt), count + 1
        with self._lock:
            if attempt.sample is not None:
                self.samples.append(attempt.sample)
            else:
                self.failures.append(Failure(prompt.id, prompt.line, count, attempt.reason))

    def _admitted(self, prompt: Prompt) -> Attempt:
        self.ledger.admit(prompt.id, prompt.count)
        attempt = Attempt()
        try:
            attempt = self._attempt(prompt)
        finally:
            self.ledger.leave(prompt.id, attempt.sample.bytes if attempt.sample else 0)
        return attempt

    def _attempt(self, prompt: Prompt) -> Attempt:
        mark = self.ledger.mark(prompt.id)
        try:
            self.server.generate(prompt)
        except RejectedError as error:
            return Attempt(reason=error.message, final=True)
        except (BrokenError, SilentError) as error:
            self._look(error)
            return Attempt(reason=error.message)
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
