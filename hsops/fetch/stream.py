"""One stream: a child process that sends files, and the part files that they go to."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hsops.core.checksum import Digest, kind_of
from hsops.core.deadline import Deadline
from hsops.core.dumps import Sample
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
        arrived: the part file has all its bytes and the right checksum.
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
        self._part: _Part | None = None

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
                self._end(event.index)

    def _write(self, event: Data) -> None:
        self._of(event.index).write(event.data, self._at[event.index])
        self._at[event.index] += len(event.data)
        self.moved += len(event.data)
        self.hooks.moved(len(event.data))

    def _end(self, index: int) -> None:
        transfer = self.batch[index]
        right = self._of(index).checksum() == transfer.sample.checksum  # an empty rest has sent no data
        self._settle(index)
        if right:
            self.hooks.arrived(transfer)
        else:
            self.folder.part(transfer.sample).unlink()  # nothing in it can be trusted: start again at its first byte
            message = "the content is not what the host's manifest says"
            self.hooks.trouble(Trouble(transfer.sample.id, "checksum", message))

    def _of(self, index: int) -> _Part:
        if self._part is None or self._part.index != index:
            self._close()
            self._part = _Part(index, self.folder, self.batch[index].sample, self._at[index])
        return self._part

    def _settle(self, index: int) -> None:
        self._close()
        self._settled.add(index)

    def _close(self) -> None:
        if self._part is not None:
            self._part.close()
            self._part = None


class _Part:
    """A part file that is being written, and the checksum of all that is in it.

    What came in an earlier run is read back; what comes now is summed as it passes, while it is in the processor's
    cache. Reading it back too would only ask the page cache for the same bytes.
    """

    def __init__(self, index: int, folder: Folder, sample: Sample, offset: int) -> None:
        self.index = index
        self._digest = Digest(kind_of(sample.checksum))
        self._handle = folder.open_part(sample, offset)
        if offset:
            self._digest.update_from(folder.part(sample), offset)

    def write(self, data: memoryview, offset: int) -> None:
        """Bytes that follow what is there."""
        self._digest.update(data)
        while data:
            count = os.pwrite(self._handle, data, offset)
            data, offset = data[count:], offset + count

    def checksum(self) -> str:
        """Of all so far."""
        return str(self._digest)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)
