"""fetch.wire: nothing that the host sends is believed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from hsops.agent import frames
from hsops.core.errors import AgentError, RemoteError
from hsops.fetch.pieces import Piece, pieces_of
from hsops.fetch.plan import Part, Transfer
from hsops.fetch.wire import Data, End, Event, LostStreamError, Reader, Refused, Whole
from tests.unit.test_fetch_plan import A

FILES = tuple(
    piece
    for size, done in ((10, 0), (6, 2))
    for piece in pieces_of(Transfer(replace(A, bytes=size), Part(done), "new"))
)

LAST = b'{"ino":7,"mtime_ns":8,"sum":"crc32:01234567"}'


def data(index: int, offset: int, body: bytes) -> bytes:
    """A data frame."""
    return frames.pack(frames.DATA, index, offset, len(body)) + body


def end(index: int) -> bytes:
    """An end frame."""
    return frames.pack(frames.END, index, 0, len(LAST)) + LAST


def words(body: bytes) -> bytes:
    """The end of file 0 in other words."""
    return frames.pack(frames.END, 0, 0, len(body)) + body


DONE = frames.pack(frames.DONE)
REST = data(1, 2, b"cdef") + end(1) + DONE
GOOD = frames.MAGIC + data(0, 0, b"01234") + data(0, 5, b"56789") + end(0) + REST
FAULT = b'{"code":"changed","message":"it grew"}'


def whole(index: int, body: bytes, checksum: bytes = b"", mtime_ns: int = 8) -> bytes:
    """A small file in one frame."""
    head = frames.pack(frames.WHOLE, index, mtime_ns, len(body)) + frames.WHOLE_HEAD.pack(7, len(checksum))
    return head + checksum + body


SMALL = frames.MAGIC + whole(0, b"0123456789", b"crc32:01234567") + REST


def parse(pieces: list[bytes], files: tuple[Piece, ...] = FILES) -> Iterator[Event]:
    """The answer to one request, as a new stream gives it."""
    rest = iter(pieces)
    reader = Reader(lambda _: next(rest, b""), "h")
    reader.begin()
    yield from reader.events(files)


def cut(stream: bytes, size: int) -> list[bytes]:
    """The stream in pieces, as a pipe may deliver it."""
    return [stream[i : i + size] for i in range(0, len(stream), size)]


@pytest.mark.parametrize("size", [1, 2, 7, 16, 17, 18, 1000])
def test_pieces_may_be_cut_anywhere(size: int) -> None:
    """The same files come out of any cutting."""
    got, ended = {0: b"", 1: b""}, []

    for event in parse(cut(GOOD, size)):
        if isinstance(event, Data):
            assert event.offset == FILES[event.index].at + len(got[event.index])
            got[event.index] += event.data
        elif isinstance(event, End):
            ended.append(event.index)

    assert got == {0: b"0123456789", 1: b"cdef"}
    assert ended == [0, 1]


@pytest.mark.parametrize("size", [1, 2, 7, 16, 17, 18, 25, 26, 1000])
def test_a_small_file_may_be_cut_anywhere(size: int) -> None:
    """Its one frame tells all that an end tells."""
    got, ended = b"", list[Event]()

    for event in parse(cut(SMALL, size)):
        if isinstance(event, Whole):
            got += event.data
            ended.append(replace(event, data=b""))

    assert (got, ended) == (b"0123456789", [Whole(0, (7, 8), "crc32:01234567", b"")])


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_a_stream_cut_short_is_lost_not_done(length: int) -> None:
    """At every byte: the end is only believed when it was said."""
    for stream in (GOOD, SMALL):
        with pytest.raises(LostStreamError):
            list(parse([stream[: min(length, len(SMALL) - 1)]] if length else []))


def test_a_refused_file_leaves_the_others() -> None:
    """A fault belongs to one file."""
    body = b'{"code":"changed","message":"it grew"}'
    stream = frames.MAGIC + data(0, 0, b"01234") + frames.pack(frames.FAULT, 0, 0, len(body)) + body
    stream += data(1, 2, b"cdef") + end(1) + DONE

    events = list(parse([stream]))

    assert Refused(0, "changed", "it grew") in events
    assert End(1, (7, 8), "crc32:01234567") in events


@pytest.mark.parametrize(
    "bad",
    [
        data(0, 0, b"01234567890"),  # more than the manifest says
        data(0, 3, b"3"),  # a hole
        data(1, 0, b"ab"),  # before the offset that was asked for
        data(2, 0, b"x"),  # a file that nobody asked for
        end(0),  # an end before the bytes
        frames.pack(frames.DATA, 0, 0, frames.LARGEST + 1),
        frames.pack(b"Q"),
        frames.pack(frames.DATA, 0, 0, 0),  # nothing, which might go on without end
        data(0, 0, b"0123456789") + frames.pack(frames.DATA, 0, 10, 0),
        DONE,  # before anything
        GOOD.removeprefix(frames.MAGIC).replace(end(1), b""),  # done before the last piece's end
        data(0, 0, b"0123456789") + end(0) + end(0) + REST,  # an end twice
        data(0, 0, b"0123456789") + end(0) + frames.pack(frames.FAULT, 0, 0, len(FAULT)) + FAULT + REST,
        frames.pack(frames.FAULT, 0, 0, 1 << 20),  # more words than anybody needs
        data(0, 0, b"0123456789") + frames.pack(frames.END, 0, 0, 2) + b"{}",
        frames.pack(frames.FAULT, 0, 0, 2) + b"[]",
        frames.pack(frames.FAULT, 0, 0, 60_000) + b"[" * 60_000,
        data(0, 0, b"0123456789") + words(b'{"ino":Infinity,"mtime_ns":5,"sum":""}'),
        data(0, 0, b"0123456789") + words(b'{"ino":NaN,"mtime_ns":5,"sum":""}'),
        data(0, 0, b"0123456789") + words(b"[" * 60_000),
        whole(0, b"01234567890"),  # a whole file that is longer, ...
        whole(0, b"012345678"),  # ... or shorter than the manifest says
        whole(1, b"abcdef"),  # the whole of a file whose rest was asked for
        whole(0, b"0123456789") + whole(0, b"0123456789"),
        data(0, 0, b"01") + whole(0, b"0123456789"),
        frames.pack(frames.WHOLE, 0, 0, frames.LARGEST),
    ],
)
def test_what_was_not_asked_for_is_an_error(bad: bytes) -> None:
    """No byte is written where it does not belong."""
    with pytest.raises(RemoteError, match="makes no sense"):
        list(parse([frames.MAGIC + bad + bytes(64)]))


def test_a_chatty_login_script_is_named() -> None:
    """Text before the magic is the usual mistake of a host's profile."""
    with pytest.raises(RemoteError, match="login script"):
        list(parse([b"Welcome to gpu-box!\n" + GOOD]))


@pytest.mark.parametrize("before", [b"", frames.MAGIC, frames.MAGIC + data(0, 0, b"01")])
def test_an_agents_refusal_is_understood_at_any_frame(before: bytes) -> None:
    """The agent's error line is told by its first byte."""
    line = b'{"error":{"code":"bad-request","message":"no","detail":{}}}\n'

    with pytest.raises(AgentError) as caught:
        list(parse(cut(before + line, 5)))

    assert caught.value.code == "bad-request"


def test_a_refusal_in_words_that_nobody_can_read_is_an_error_too() -> None:
    """However deep they are."""
    with pytest.raises(RemoteError, match="makes no sense"):
        list(parse([b'{"error":' + b"[" * 100_000]))


def test_requests_are_answered_one_after_the_other_on_one_stream() -> None:
    """Wherever it is cut, and although the reader's buffer is filled anew by every read."""
    buffer, rest = bytearray(7), bytearray(GOOD + GOOD.removeprefix(frames.MAGIC))

    def read(_: int) -> memoryview:
        count = min(len(buffer), len(rest))
        buffer[:count], rest[:] = rest[:count], rest[count:]
        return memoryview(buffer)[:count]

    reader = Reader(read, "h")
    reader.begin()

    for _ in range(2):
        got = {0: b"", 1: b""}
        for event in reader.events(FILES):
            if isinstance(event, Data):
                got[event.index] += event.data
        assert got == {0: b"0123456789", 1: b"cdef"}


def test_a_reader_says_how_much_is_due() -> None:
    """A line over a socket must not wait for more than will come."""
    wanted, rest = list[int](), iter([frames.MAGIC[:1], frames.MAGIC[1:], data(0, 0, b"0123456789")[:17], b"01"])

    def read(want: int) -> bytes:
        wanted.append(want)
        return next(rest, b"")

    reader = Reader(read, "h")
    reader.begin()
    with pytest.raises(LostStreamError):
        list(reader.events(FILES))

    assert wanted == [1, len(frames.MAGIC) - 1, 1, 10, 8]
