"""Lines of a file that may be packed with gzip or zstd, told by its first bytes, and may be a pipe."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LONGEST_LINE = 32 << 20  # bytes; about 4 million tokens
MOST_TIMES = 100  # as large as packed; token ids come to 3 to 20
UNASKED = 256 << 20  # bytes that may be unpacked of anything: so small a file that is nothing but repetition is fine
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BROKEN = (OSError, EOFError, zlib.error, zstd.ZstdError)


class DamagedError(Exception):
    """A packed file ends too early, or is not what it should be."""


def lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Lines, unpacked; None for one that is too long, which is passed over without being held.

    Args:
        file: read once, from where it stands.

    Raises:
        DamagedError: after all the lines before.
        OSError: it cannot be read.
    """
    head = file.read(4)
    source = _Source(head, file)
    unpack: io.BufferedIOBase
    if head[:2] == _GZIP:
        unpack = gzip.GzipFile(fileobj=cast(BinaryIO, source))
    elif head == _ZSTD or (head[1:] == b"\x2a\x4d\x18" and head[0] >> 4 == 5):  # a frame, or one to be skipped
        unpack = zstd.ZstdFile(cast(BinaryIO, source))
    else:
        yield from _split(io.BufferedReader(source, 1 << 20))
        return
    yield from _split(io.BufferedReader(_Unpacked(unpack, source), 1 << 20))


def _split(file: io.BufferedReader) -> Iterator[bytes | None]:
    while raw := file.readline(LONGEST_LINE + 1):
        if len(raw) <= LONGEST_LINE:
            yield raw
            continue
        while not raw.endswith(b"\n") and (raw := file.readline(LONGEST_LINE)):
            pass
        yield None


class _Source(io.RawIOBase):
    """A file whose first bytes were read already; counts what is taken from it."""

    def __init__(self, head: bytes, file: BinaryIO) -> None:
        self._head, self._file, self.count, self.failed = head, file, 0, False

    def readable(self) -> bool:
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        """As of io."""
        data, self._head = self._head[: len(into)], self._head[len(into) :]
        try:
            data = data or self._file.read(len(into))
        except OSError:
            self.failed = True
            raise
        into[: len(data)] = data
        self.count += len(data)
        return len(data)


class _Unpacked(io.RawIOBase):
    """What a packed file holds: no more than is believable, and every way to be damaged is one."""

    def __init__(self, unpack: io.BufferedIOBase, source: _Source) -> None:
        self._unpack, self._source, self._size = unpack, source, 0

    def readable(self) -> bool:
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        """As of io."""
        try:
            data = self._unpack.read1(len(into))  # no more than is there: what comes before the damage is read
        except _BROKEN as error:
            if self._source.failed:  # the disk's fault, not the file's
                raise
            how = "cut short" if isinstance(error, EOFError) else f"damaged: {error}"
            raise DamagedError(f"the packed file is {how} (after byte {self._source.count:,} of it)") from None
        self._size += len(data)
        if self._size > max(UNASKED, MOST_TIMES * self._source.count):
            message = (
                f"unpacks to more than {self._size:,} bytes, from {self._source.count:,}: no prompts are like that"
            )
            raise DamagedError(message)
        into[: len(data)] = data
        return len(data)
