"""The events of a run on all its hosts as one stream. A node whose link is lost is waited for; the others go on."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hsops.core.errors import HsopsError
from hsops.remote.agent import Agent
from hsops.remote.log import Place
from hsops.remote.reattach import Retry, reattaching
from hsops.remote.runs import follow_run

_TICK_S = 0.25
_END_S = 2.0


@contextmanager
def follow(agents: Sequence[Agent], run: str, places: Sequence[Place]) -> Iterator[Iterator[dict[str, Any]]]:
    """The events of ``run-follow`` of every node, each with its ``node``; ``tick`` and ``link`` between them.

    A link of the first node that is lost is the caller's to attach anew, as on one host; those of others come as
    ``link``: ``lost`` says why, and ``wait`` for how many seconds.

    Args:
        agents, places: of the nodes, by rank; how far each log is known.
    """
    if len(agents) == 1:
        with follow_run(agents[0], run, place=places[0]) as events:
            yield events
        return
    said: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()
    over = threading.Event()
    readers = [_Reader(_Node(n, agent, run, replace(places[n])), said, over) for n, agent in enumerate(agents)]
    for reader in readers:
        reader.start()
    try:
        yield _taken(said)
    finally:
        over.set()
        for reader in readers:
            reader.join(_END_S)  # one whose host is silent ends with its deadline


def _taken(said: queue.SimpleQueue[dict[str, Any] | BaseException]) -> Iterator[dict[str, Any]]:
    while True:
        try:
            event = said.get(timeout=_TICK_S)
        except queue.Empty:
            yield {"kind": "tick"}
            continue
        if isinstance(event, BaseException):
            raise event
        yield event


@dataclass(frozen=True, slots=True)
class _Node:
    rank: int
    agent: Agent
    run: str
    place: Place


class _Reader(threading.Thread):
    """Follows one node."""

    def __init__(
        self, node: _Node, said: queue.SimpleQueue[dict[str, Any] | BaseException], over: threading.Event
    ) -> None:
        super().__init__(name=f"follow-{node.agent.host.name}", daemon=True)
        self._node, self._said, self._over = node, said, over

    def run(self) -> None:
        retry = Retry(patience=math.inf)
        again = reattaching(self._attach, retry, self._lost, pause=self._pause)
        attached = again if self._node.rank else self._attach()  # what becomes of the first one's link is the caller's
        try:
            for event in attached:
                self._said.put(event)
        except BaseException as error:  # noqa: BLE001 - raised where the events are taken
            if not self._over.is_set():
                self._said.put(error)

    def _attach(self) -> Generator[dict[str, Any], None, None]:
        place = self._node.place
        if self._over.is_set():
            return
        with follow_run(self._node.agent, self._node.run, place=place) as events:
            for event in events:
                if event["kind"] == "log":
                    place.take(event)
                elif event["kind"] == "log-cut":
                    place.cut(event)
                yield {**event, "node": self._node.rank}
                if self._over.is_set():
                    return

    def _pause(self, seconds: float) -> None:
        self._over.wait(seconds)

    def _lost(self, error: HsopsError, wait: float) -> None:
        self._said.put({"kind": "link", "node": self._node.rank, "lost": error.message, "wait": wait})
