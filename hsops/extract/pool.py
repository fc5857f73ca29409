"""The prompts that have no dump yet: every server takes its next one here, and gives back what it could not do."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hsops.core.dumps import Sample
from hsops.core.prompts import Prompt
from hsops.extract.journal import Journal, Tried

ATTEMPTS = 3
BUSY_ATTEMPTS = 30  # of a server that says so: with its pauses, a quarter of an hour
DEATHS = 3
_FIRST_S, _LONGEST_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that has no dump after all attempts.

    Args:
        id: the prompt.
        line: of the prompts file; with ``row`` the number of a dataset's row.
        attempts: how often it was sent.
        reason: of the last attempt.
        server: that it was sent to last.
        tried: every attempt that is written down, those of earlier extracts too.
    """

    id: str
    line: int
    attempts: int
    reason: str
    server: str = ""
    tried: tuple[Tried, ...] = ()
    row: bool = False


@dataclass(frozen=True, slots=True)
class Tally:
    """Dumps, their tokens and bytes."""

    samples: int = 0
    tokens: int = 0
    bytes: int = 0

    def plus(self, sample: Sample) -> Tally:
        """And one more."""
        return Tally(self.samples + 1, self.tokens + sample.tokens, self.bytes + sample.bytes)

    @classmethod
    def sum(cls, tallies: Iterable[Tally]) -> Tally:
        """All together."""
        some = list(tallies)
        return cls(sum(t.samples for t in some), sum(t.tokens for t in some), sum(t.bytes for t in some))


@dataclass(slots=True)
class Item:
    """A prompt on its way: how often it was sent; to a busy server; to one that was lost meanwhile, or even died."""

    prompt: Prompt
    attempts: int = 0
    busy: int = 0
    lost: int = 0
    deaths: int = 0
    due: float = 0.0

    @property
    def alone(self) -> bool:
        """One death more is its own fault: nothing else may be under way then, or that would be blamed with it."""
        return self.deaths >= DEATHS - 1


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one attempt ended: with a sample, or with a reason.

    Args:
        final: sending it again will not help.
        busy: the server only wants to be asked later.
        sent: it left this machine.
    """

    sample: Sample | None = None
    reason: str = ""
    final: bool = False
    busy: bool = False
    sent: bool = True


class Pool:
    """Shared by all workers of all servers.

    Args:
        prompts: to send.
        journal: told of every attempt.
        now: a monotonic clock, seconds.
        dice: from 0 to 1: how much of a pause is left to chance.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        journal: Journal,
        *,
        now: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._fresh, self._later = deque(Item(prompt) for prompt in prompts), list[Item]()
        self.prompts, self._left, self._tallies = tuple(prompts), len(self._fresh), dict[str, Tally]()
        self._made, self._out = dict[str, set[str]](), dict[str, dict[str, Item]]()  # ids; what is under way; by server
        self._journal, self._now, self._dice = journal, now, dice
        self._changed, self._closed = threading.Condition(), False
        self._began: float | None = None
        self._ended: float | None = None
        self.samples: list[Sample] = []
        self.failures: list[Failure] = []

    @property
    def seconds(self) -> float:
        """From the first prompt that was taken to the last that was settled."""
        return self._ended - self._began if self._began is not None and self._ended is not None else 0.0

    @property
    def settled(self) -> bool:
        """Every prompt has its dump, or its failure."""
        return not self._left

    def tally(self, server: str) -> Tally:
        """What a server has made of these prompts."""
        return self._tallies.get(server, Tally())

    def made(self, server: str) -> set[str]:
        """Ids of these prompts whose dump a server has made."""
        with self._changed:
            return set(self._made.get(server, ()))

    def total(self) -> Tally:
        """What all have."""
        with self._changed:
            return Tally.sum(self._tallies.values())

    def close(self) -> None:
        """Nobody takes another prompt."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Those who wait in ``take`` ask again whether they are over."""
        with self._changed:
            self._changed.notify_all()

    def pause(self, seconds: float) -> bool:
        """Wait; False when there is nothing left to wait for."""
        until = self._now() + seconds
        with self._changed:
            while not self._closed and self._left and (left := until - self._now()) > 0:
                self._changed.wait(left)
            return not self._closed and self._left > 0

    def take(self, over: Callable[[], bool], server: str) -> Item | None:
        """The next prompt; waits while all that are left are under way, not due, or to go alone. None when it is over.

        One that two servers have died with comes last, and is alone at its server.
        """
        with self._changed:
            self._began = self._now() if self._began is None else self._began
            while not self._closed and self._left and not over():
                now, out = self._now(), self._out.setdefault(server, {})
                item = self._next(out, now)
                if item:
                    out[item.prompt.id] = item
                    return item
                later = [item.due - now for item in self._later if item.due > now]
                self._changed.wait(min(later, default=None))
            return None

    def _next(self, out: Mapping[str, Item], now: float) -> Item | None:
        if any(item.alone for item in out.values()):
            return None
        due = sorted((item for item in self._later if item.due <= now), key=lambda item: (item.alone, item.due))
        if self._fresh and (not due or due[0].alone):
            return self._fresh.popleft()
        if not due or (due[0].alone and out):
            return None
        self._later.remove(due[0])
        return due[0]

    def _back(self, item: Item, server: str) -> None:
        self._out.get(server, {}).pop(item.prompt.id, None)

    def settle(self, item: Item, attempt: Attempt, server: str) -> None:
        """What became of an attempt: done, given up, or to be sent again later."""
        if attempt.sent:
            self._journal.attempted(item.prompt, server, attempt.reason)
        with self._changed:
            self._back(item, server)
            item.attempts += attempt.sent
            item.busy += attempt.busy
            if attempt.sample is not None:
                self._keep(attempt.sample, server)
            elif attempt.final or item.busy >= BUSY_ATTEMPTS or item.attempts - item.busy - item.lost >= ATTEMPTS:
                self._fail(item, attempt.reason, server)
            else:
                self._put_back(item, pause(max(item.attempts - item.lost, 1), self._dice()))

    def give_back(self, item: Item, server: str) -> None:
        """It was not sent."""
        with self._changed:
            self._back(item, server)
            self._put_back(item, 0.0)

    def found(self, item: Item, sample: Sample, server: str) -> None:
        """Its dump is there, whoever had it made."""
        self._journal.attempted(item.prompt, server, "")
        with self._changed:
            self._back(item, server)
            self._keep(sample, server)

    def hand_on(self, items: Iterable[Item], server: str, reason: str, *, died: bool) -> None:
        """What a server had under way when it was lost goes to whoever takes it. ``died``: it may be the cause."""
        for item in items:
            self._journal.attempted(item.prompt, server, reason)
            with self._changed:
                self._back(item, server)
                item.attempts += 1
                item.lost += 1
                item.deaths += died
                if item.deaths >= DEATHS:
                    self._fail(item, f"a server died {item.deaths} times while it was under way: {reason}", server)
                else:
                    self._put_back(item, 0.0)

    def _put_back(self, item: Item, seconds: float) -> None:
        item.due = self._now() + seconds
        self._later.append(item)
        self._changed.notify_all()

    def _fail(self, item: Item, reason: str, server: str) -> None:
        prompt = item.prompt
        self.failures.append(Failure(prompt.id, prompt.line, item.attempts, reason, server, row=prompt.row))
        self._end()

    def _keep(self, sample: Sample, server: str) -> None:
        self.samples.append(sample)
        self._made.setdefault(server, set()).add(sample.id)
        self._tallies[server] = self._tallies.get(server, Tally()).plus(sample)
        self._end()

    def _end(self) -> None:
        self._left -= 1
        self._ended = self._now()
        self._changed.notify_all()


def pause(attempts: int, chance: float) -> float:
    """Seconds before a prompt is sent again: longer each time, at most half a minute, half of it left to chance.

    Args:
        attempts: so far, from 1.
        chance: 0 to 1.
    """
    longest: float = min(_FIRST_S * 2.0 ** (attempts - 1), _LONGEST_S)
    return longest * (0.5 + 0.5 * chance)
