"""Parses what ``dumps-send`` writes; the frames are described in ``hsops.agent.frames``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hsops.agent import frames
from hsops.core.errors import AgentError, RemoteError, UnreachableError
from hsops.fetch.plan import Transfer


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of one file, in order."""

    index: int
    offset: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class End:
    """The file was sent to its end and did not change meanwhile."""

    index: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The host cannot send this file: ``missing``, ``changed`` or ``unreadable``."""

    index: int
    code: str
    message: str


Event = Data | End | Refused


class LostStreamError(UnreachableError):
    """The stream ended before everything was sent."""


def parse(pieces: Iterable[bytes], transfers: Sequence[Transfer], *, host: str) -> Iterator[Event]:
    """The stream as events, each checked against what was asked for: the host decides neither names nor sizes.

    Raises:
        LostStreamError: it ended too early.
        AgentError: the agent refused or failed.
        RemoteError: what came is not what the agent sends.
    """
    reader = _Pieces(pieces, host)
    _magic(reader)
    at = [t.offset for t in transfers]
    while True:
        kind, index, offset, length = _header(reader)
        if kind == frames.DONE:
            return
        if index >= len(transfers):
            raise _nonsense(host, f"file {index} of {len(transfers)}")
        size = transfers[index].sample.bytes
        if kind == frames.DATA:
            if offset != at[index] or offset + length > size:
                raise _nonsense(host, f"bytes {offset} to {offset + length} where {at[index]} to {size} were due")
            for data in reader.pieces(length):
                yield Data(index, at[index], data)
                at[index] += len(data)
        elif kind == frames.END:
            reader.exactly(length)
            if at[index] != size:
                raise _nonsense(host, f"an end at {at[index]} of {size} bytes")
            yield End(index)
        elif kind == frames.FAULT:
            yield _refused(index, reader.exactly(length), host)
        else:
            raise _nonsense(host, f"a frame of kind {kind!r}")


class _Pieces:
    """A stream of pieces, read by length."""

    def __init__(self, pieces: Iterable[bytes], host: str) -> None:
        self._next, self._rest, self.host = iter(pieces), memoryview(b""), host

    def pieces(self, count: int) -> Iterator[memoryview]:
        """``count`` bytes in pieces as they come, without copying."""
        while count:
            if not self._rest:
                self._rest = memoryview(next(self._next, b""))
                if not self._rest:
                    raise LostStreamError("the stream ended before everything was sent", host=self.host)
            piece, self._rest = self._rest[:count], self._rest[count:]
            count -= len(piece)
            yield piece

    def exactly(self, count: int) -> bytes:
        """``count`` bytes."""
        return b"".join(self.pieces(count))

    def line(self) -> bytes:
        """What is left, to the end of the stream."""
        return bytes(self._rest) + b"".join(self._next)


def _magic(reader: _Pieces) -> None:
    first = reader.exactly(1)
    if first == frames.ERROR:
        raise _error(reader)
    if (got := first + reader.exactly(len(frames.MAGIC) - 1)) != frames.MAGIC:
        raise _nonsense(reader.host, f"{got!r} at the start; does a login script on the host print something?")


def _header(reader: _Pieces) -> tuple[bytes, int, int, int]:
    first = reader.exactly(1)
    if first == frames.ERROR:
        raise _error(reader)
    kind, index, offset, length = frames.HEADER.unpack(first + reader.exactly(frames.HEADER.size - 1))
    if length > frames.LARGEST:
        raise _nonsense(reader.host, f"a frame of {length} bytes")
    return kind, index, offset, length


def _error(reader: _Pieces) -> RemoteError:
    text = frames.ERROR + reader.line()
    try:
        error = json.loads(text)["error"]
        return AgentError(error["message"], code=error["code"], detail=error.get("detail"), host=reader.host)
    except (ValueError, KeyError, TypeError):
        return _nonsense(reader.host, repr(text[:200]))


def _refused(index: int, body: bytes, host: str) -> Refused:
    try:
        fault = json.loads(body)
        return Refused(index, str(fault["code"]), str(fault["message"]))
    except (ValueError, KeyError, TypeError):
        raise _nonsense(host, f"the fault {body[:200]!r}") from None


def _nonsense(host: str, what: str) -> RemoteError:
    return RemoteError(f"the agent's stream makes no sense: {what}", host=host)
