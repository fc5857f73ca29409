"""What comes over one line, and the part files that it goes to."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hsops.core.checksum import Digest, kind_of
from hsops.core.dumps import Sample
from hsops.fetch.folder import Folder
from hsops.fetch.line import Line
from hsops.fetch.plan import Transfer
from hsops.fetch.wire import Data, LostStreamError, Reader, Refused

AHEAD = 2  # requests under way on one line


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
    """Receives batch after batch over one line.

    Args:
        line: where they come from.
        folder: the local one.
        hooks: told what happens.
        host: its name, for errors.
    """

    def __init__(self, line: Line, folder: Folder, hooks: Hooks, host: str) -> None:
        self.line, self.hooks = line, hooks
        self.moved = self.settled = 0  # bytes; files that came or were refused
        self._folder, self._reader = folder, Reader(line.read, host)
        self._asked: deque[_Batch] = deque()

    def run(self, take: Callable[[], tuple[Transfer, ...]], stop: threading.Event) -> None:
        """Receive until ``take`` has no more or ``stop`` is set; afterwards ``rest()`` is what did not come.

        The next batch is asked for before the one under way has come: a round trip costs no time.

        Raises:
            UnreachableError: the link was lost.
            AgentError, RemoteError: the agent refused, or what came makes no sense.
            OSError: a part file cannot be written.
        """
        try:
            self._reader.begin()
            while not stop.is_set() and self._ask(take):
                self._receive(self._asked[0], stop)
                if not stop.is_set():
                    self._asked.popleft()
        except LostStreamError as error:
            raise LostStreamError(self.line.why() or error.message, host=error.host) from None
        finally:
            for batch in self._asked:
                batch.close()

    def rest(self) -> tuple[Transfer, ...]:
        """The files that were not settled, to be continued where their part files end."""
        return tuple(transfer for batch in self._asked for transfer in batch.rest())

    def _ask(self, take: Callable[[], tuple[Transfer, ...]]) -> bool:
        """Have two requests under way, while there is work; says whether there is one."""
        while len(self._asked) < AHEAD and (transfers := take()):
            self._asked.append(_Batch(transfers, self._folder))
            self.line.ask(transfers)
        return bool(self._asked)

    def _receive(self, batch: _Batch, stop: threading.Event) -> None:
        for event in self._reader.events(batch.transfers):
            if stop.is_set():
                return
            if isinstance(event, Data):
                batch.write(event)
                self.moved += len(event.data)
                self.hooks.moved(len(event.data))
                continue
            transfer = batch.transfers[event.index]
            self.settled += 1
            if isinstance(event, Refused):
                batch.settle(event.index)
                self.hooks.trouble(Trouble(transfer.sample.id, event.code, event.message))
            elif batch.is_right(event.index):
                self.hooks.arrived(transfer)
            else:
                message = "the content is not what the host's manifest says"
                self.hooks.trouble(Trouble(transfer.sample.id, "checksum", message))


class _Batch:
    """One request, and the part file that is being written of it."""

    def __init__(self, transfers: tuple[Transfer, ...], folder: Folder) -> None:
        self.transfers, self._folder = transfers, folder
        self._at = [t.offset for t in transfers]
        self._settled: set[int] = set()
        self._part: _Part | None = None

    def rest(self) -> Iterator[Transfer]:
        for i, transfer in enumerate(self.transfers):
            if i not in self._settled:
                yield replace(transfer, offset=self._at[i])

    def write(self, event: Data) -> None:
        self._of(event.index).write(event.data, self._at[event.index])
        self._at[event.index] += len(event.data)

    def is_right(self, index: int) -> bool:
        """All of it came: whether it is what the manifest says. If not, nothing in the part file can be trusted."""
        sample = self.transfers[index].sample
        right = self._of(index).checksum() == sample.checksum  # an empty rest has sent no data
        self.settle(index)
        if not right:
            self._folder.part(sample).unlink()  # start again at its first byte
        return right

    def settle(self, index: int) -> None:
        self.close()
        self._settled.add(index)

    def close(self) -> None:
        if self._part is not None:
            self._part.close()
            self._part = None

    def _of(self, index: int) -> _Part:
        if self._part is None or self._part.index != index:
            self.close()
            self._part = _Part(index, self._folder, self.transfers[index].sample, self._at[index])
        return self._part


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
