"""One stream: a child process that sends files, and the part files that they go to."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hsops.core.deadline import Deadline
from hsops.fetch.folder import Folder
from hsops.fetch.plan import Transfer
from hsops.fetch.wire import Data, Event, LostStreamError, Refused, parse
from hsops.remote.agent import Agent

BULK = Deadline(connect=15.0, idle=30.0, total=None)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why one sample did not come.

    Args:
        id: the sample.
        code: ``missing``, ``changed``, ``unreadable`` (as the agent said) or ``checksum``.
        message: one sentence.
    """

    id: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a stream reports; called from its thread.

    Args:
        moved: so many bytes are in a part file.
        arrived: the part file has all its bytes; nothing was checked yet.
        trouble: this file will not come.
    """

    moved: Callable[[int], None]
    arrived: Callable[[Transfer], None]
    trouble: Callable[[Trouble], None]


class Receiver:
    """Receives one batch of files over one stream.

    Args:
        agent: on the sending host.
        source: its dump folder there.
        folder: the local one.
        batch: what to ask for.
        hooks: told what happens.
    """

    def __init__(self, agent: Agent, source: str, folder: Folder, batch: tuple[Transfer, ...], hooks: Hooks) -> None:
        self.agent, self.source, self.folder, self.batch, self.hooks = agent, source, folder, batch, hooks
        self.moved = 0
        self._at = [t.offset for t in batch]
        self._settled: set[int] = set()
        self._open: tuple[int, int] | None = None  # index and descriptor of the part being written

    @property
    def settled(self) -> int:
        """How many files came or were refused."""
        return len(self._settled)

    def run(self, stop: threading.Event) -> None:
        """Receive until the batch is done or ``stop`` is set; afterwards ``rest()`` is what is left of it.

        Raises:
            UnreachableError: the link was lost.
            AgentError, RemoteError: the agent refused, or what came makes no sense.
            OSError: a part file cannot be written.
        """
        files = [[t.sample.id, t.offset, t.sample.bytes] for t in self.batch]
        command, stdin = self.agent.request("dumps-send", folder=self.source, files=files)
        try:
            with self.agent.host.bulk(command, stdin=stdin, deadline=BULK) as stream:
                try:
                    self._receive(parse(stream, self.batch, host=self.agent.host.name), stop)
                except LostStreamError as error:
                    said = stream.finish().stderr.decode(errors="replace").strip().splitlines()
                    raise LostStreamError(said[-1] if said else error.message, host=error.host) from None
        finally:
            self._close()

    def rest(self) -> tuple[Transfer, ...]:
        """The files that were not settled, to be continued where their part files end."""
        left = [i for i in range(len(self.batch)) if i not in self._settled]
        return tuple(replace(self.batch[i], offset=self._at[i]) for i in left)

    def _receive(self, events: Iterator[Event], stop: threading.Event) -> None:
        for event in events:
            if stop.is_set():
                return
            if isinstance(event, Data):
                self._write(event)
            elif isinstance(event, Refused):
                self._settle(event.index)
                self.hooks.trouble(Trouble(self.batch[event.index].sample.id, event.code, event.message))
            else:
                self._part(event.index)  # an empty rest sends no data
                self._settle(event.index)
                self.hooks.arrived(self.batch[event.index])

    def _write(self, event: Data) -> None:
        handle, data = self._part(event.index), event.data
        while data:
            count = os.pwrite(handle, data, self._at[event.index])
            self._at[event.index] += count
            data = data[count:]
        self.moved += len(event.data)
        self.hooks.moved(len(event.data))

    def _part(self, index: int) -> int:
        if self._open is None or self._open[0] != index:
            self._close()
            self._open = (index, self.folder.open_part(self.batch[index].sample, self._at[index]))
        return self._open[1]

    def _settle(self, index: int) -> None:
        self._close()
        self._settled.add(index)

    def _close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None
