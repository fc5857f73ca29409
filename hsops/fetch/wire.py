"""Parses what ``dumps-send`` and ``dumps-direct`` write; the frames are described in ``hsops.agent.frames``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hsops.agent import frames
from hsops.core.errors import AgentError, RemoteError, UnreachableError
from hsops.fetch.pieces import Piece


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of one file, in order."""

    index: int
    offset: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class End:
    """The piece was sent to its end, and the file did not change meanwhile.

    Args:
        index: which.
        inode: number and mtime_ns of the file on the host.
        checksum: ``kind:hex`` of the piece, when it was asked for; else empty.
    """

    index: int
    inode: tuple[int, int]
    checksum: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The host cannot send the piece's file: ``missing``, ``changed`` or ``unreadable``."""

    index: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole small file, and what its ``End`` would tell. ``data`` is valid until the next event."""

    index: int
    inode: tuple[int, int]
    checksum: str
    data: memoryview | bytes


Event = Data | End | Refused | Whole
_LONGEST_ERROR = 1 << 20
_LONGEST_WORDS = 1 << 16  # of an end or a fault
_LONGEST_SUM = 255  # of a small file: its length is one byte
_BAD_WORDS = (
    ValueError,
    KeyError,
    TypeError,
    OverflowError,
    RecursionError,
)  # also Infinity, and ten thousand brackets


class LostStreamError(UnreachableError):
    """The stream ended before everything was sent."""


Read = Callable[[int], "bytes | memoryview"]  # what has come; about so much is due. Nothing: it has ended


class Reader:
    """Reads one stream; ``begin`` first, then ``events`` for each request.

    Args:
        read: gives the next bytes. They may lie in a buffer that the next call fills anew.
        host: its name, for errors.
    """

    def __init__(self, read: Read, host: str) -> None:
        self._read, self._rest, self.host = read, memoryview(b""), host

    def begin(self) -> None:
        """See that it is a stream of ours.

        Raises:
            LostStreamError: it ended.
            AgentError: the agent refused.
            RemoteError: something else talks.
        """
        first = self._exactly(1)
        if first == frames.ERROR:
            raise self._error()
        if (got := first + self._exactly(len(frames.MAGIC) - 1)) != frames.MAGIC:
            raise self._nonsense(f"{got!r} at the start; does a login script on the host print something?")

    def events(self, pieces: Sequence[Piece]) -> Iterator[Event]:
        """What answers one request, each checked against what was asked for: the host decides neither names nor sizes.

        Raises:
            LostStreamError: it ended too early.
            AgentError: the agent refused or failed.
            RemoteError: what came is not what the agent sends.
        """
        at, answered = [piece.at for piece in pieces], set[int]()
        while True:
            kind, index, offset, length = self._header()
            if kind == frames.DONE:
                if len(answered) < len(pieces):
                    raise self._nonsense(f"done after {len(answered)} of {len(pieces)} files")
                return
            if index >= len(pieces) or index in answered:
                raise self._nonsense(f"file {index} of {len(pieces)}, or more of it after its end")
            end = pieces[index].end
            if kind == frames.WHOLE and at[index] == 0 and length == end <= frames.SMALL:
                answered.add(index)
                yield self._whole(index, offset, length)
            elif kind == frames.DATA:
                if not length or offset != at[index] or offset + length > end:  # of none there might be no end
                    raise self._nonsense(f"bytes {offset} to {offset + length} where {at[index]} to {end} were due")
                for data in self._pieces(length):
                    yield Data(index, at[index], data)
                    at[index] += len(data)
            else:
                words = self._words(kind, index, length, whole=at[index] == end)
                answered.add(index)
                yield words

    def _whole(self, index: int, mtime_ns: int, length: int) -> Whole:
        rest, head = self._rest, frames.WHOLE_HEAD.size
        if len(rest) < head + _LONGEST_SUM + length:
            inode, words = frames.WHOLE_HEAD.unpack(self._exactly(head))
            checksum = self._exactly(words).decode("ascii", "replace")
            return Whole(index, (inode, mtime_ns), checksum, self._exactly(length))
        inode, words = frames.WHOLE_HEAD.unpack_from(rest)  # it lies together: nothing is copied
        start = head + words
        checksum = bytes(rest[head:start]).decode("ascii", "replace") if words else ""
        self._rest = rest[start + length :]
        return Whole(index, (inode, mtime_ns), checksum, rest[start : start + length])

    def _words(self, kind: bytes, index: int, length: int, *, whole: bool) -> End | Refused:
        if kind not in (frames.END, frames.FAULT):
            raise self._nonsense(f"a frame of kind {kind!r}")
        if length > _LONGEST_WORDS:
            raise self._nonsense(f"{length} bytes of words")
        if kind == frames.FAULT:
            return self._refused(index, self._exactly(length))
        if not whole:
            raise self._nonsense("an end before the last byte")
        return self._end(index, self._exactly(length))

    def _pieces(self, count: int) -> Iterator[memoryview]:
        """``count`` bytes in pieces as they come, without copying."""
        while count:
            if not self._rest:
                self._rest = memoryview(self._read(count))
                if not self._rest:
                    raise LostStreamError("the stream ended before everything was sent", host=self.host)
            piece, self._rest = self._rest[:count], self._rest[count:]
            count -= len(piece)
            yield piece

    def _exactly(self, count: int) -> bytes:
        if len(self._rest) >= count:
            found, self._rest = bytes(self._rest[:count]), self._rest[count:]
            return found
        return b"".join(bytes(piece) for piece in self._pieces(count))

    def _header(self) -> tuple[bytes, int, int, int]:
        if len(self._rest) >= frames.HEADER.size and self._rest[0] != frames.ERROR[0]:  # nearly always, of small files
            kind, index, offset, length = frames.HEADER.unpack_from(self._rest)
            self._rest = self._rest[frames.HEADER.size :]
        else:
            first = self._exactly(1)
            if first == frames.ERROR:
                raise self._error()
            kind, index, offset, length = frames.HEADER.unpack(first + self._exactly(frames.HEADER.size - 1))
        if length > frames.LARGEST:
            raise self._nonsense(f"a frame of {length} bytes")
        return kind, index, offset, length

    def _error(self) -> RemoteError:
        text = frames.ERROR + bytes(self._rest)
        while len(text) < _LONGEST_ERROR and (more := self._read(_LONGEST_ERROR - len(text))):
            text += bytes(more)
        try:
            error = json.loads(text)["error"]
            return AgentError(error["message"], code=error["code"], detail=error.get("detail"), host=self.host)
        except _BAD_WORDS:
            return self._nonsense(repr(text[:200]))

    def _end(self, index: int, body: bytes) -> End:
        try:
            found = json.loads(body)
            return End(index, (int(found["ino"]), int(found["mtime_ns"])), str(found["sum"]))
        except _BAD_WORDS:
            raise self._nonsense(f"the end {body[:200]!r}") from None

    def _refused(self, index: int, body: bytes) -> Refused:
        try:
            fault = json.loads(body)
            return Refused(index, str(fault["code"]), str(fault["message"]))
        except _BAD_WORDS:
            raise self._nonsense(f"the fault {body[:200]!r}") from None

    def _nonsense(self, what: str) -> RemoteError:
        return RemoteError(f"the agent's stream makes no sense: {what}", host=self.host)
