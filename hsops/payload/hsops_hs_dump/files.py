"""A dump while it is written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

from .layout import Layout

try:
    from xxhash import xxh3_64
except ImportError:  # crc32 then: 1.1 GB/s instead of 10 and more, but always there
    xxh3_64 = None  # type: ignore[assignment,misc]

HASH = "crc32" if xxh3_64 is None else "xxh3"

SUFFIX, PART = ".safetensors", ".part"
FILE_MODE = 0o644
PIECE = 4 << 20


class Hash(Protocol):
    """What is common to xxhash and our crc32."""

    def update(self, data: Any, /) -> None:
        """Add bytes."""
        ...

    def hexdigest(self) -> str:
        """The value."""
        ...


class DumpFile:
    """``<id>.safetensors.part``: rows go to their places in order, then the name changes.

    Raises:
        OSError: from every method: no space, no permission, the folder is gone.
    """

    def __init__(self, folder: str, sample: str, layout: Layout) -> None:
        self.layout = layout
        self._path = os.path.join(folder, sample + SUFFIX)
        self._header = layout.header()
        self._ids = bytearray()
        self._have = 0
        self._hash = _new_hash()
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        os.makedirs(folder, exist_ok=True)  # somebody may remove it to make room while the server runs
        self._handle = os.open(self._path + PART, flags, FILE_MODE)
        try:
            self._reserve(layout.size(self._header))
            self._hash.update(self._header)
            self._write(self._header, 0)
        except OSError:
            self.discard()
            raise

    def rows(self, position: int, states: Sequence[memoryview], ids: bytes) -> None:
        """Write the rows from ``position`` on, which is where the last ones ended, and remember their token ids.

        Args:
            position: in the prompt.
            states: the rows' bytes in each tensor of states.
            ids: their token ids as int64.
        """
        if position != self._have:
            raise OSError(f"rows {position} and on came where row {self._have} was due")
        for tensor, (data, row) in enumerate(zip(states, self.layout.rows, strict=True)):
            if tensor == 0:
                self._hash.update(data)
            self._write(data, self._begin(tensor) + position * row)
        self._ids += ids
        self._have += len(ids) // 8

    def finish(self) -> dict[str, Any]:
        """Give the file its name; returns what the manifest's line says of it."""
        if self._have != self.layout.tokens:
            raise OSError(f"{self._have} of {self.layout.tokens} rows at the end")
        ids = bytes(self._ids)
        for tensor in range(1, len(self.layout.rows)):
            self._sum(self._begin(tensor), self._begin(tensor + 1))
        self._hash.update(ids)
        self._write(ids, self._begin(len(self.layout.rows)))
        os.close(self._handle)
        self._handle = -1
        os.rename(self._path + PART, self._path)
        return {
            "dtype": self.layout.dtype,
            "hidden_size": self.layout.hidden,
            "bytes": self.layout.size(self._header),
            "checksum": f"{HASH}:{self._hash.hexdigest()}",
            "token_hash": f"sha256:{hashlib.sha256(ids).hexdigest()[:16]}",
        }

    def discard(self) -> None:
        """Close and remove what there is of it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        with contextlib.suppress(OSError):
            os.unlink(self._path + PART)

    def _reserve(self, size: int) -> None:
        """Have the space, or fail now instead of in the middle."""
        try:
            os.posix_fallocate(self._handle, 0, size)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise

    def _begin(self, tensor: int) -> int:
        """Where a tensor begins in the file."""
        return len(self._header) + self.layout.tokens * sum(self.layout.rows[:tensor])

    def _sum(self, begin: int, end: int) -> None:
        """Add written bytes to the checksum, which wants a file's bytes in order. From the RAM disk: 10 GB/s."""
        while begin < end:
            data = os.pread(self._handle, min(PIECE, end - begin), begin)
            if not data:
                raise OSError(f"the file ends at byte {begin}")
            self._hash.update(data)
            begin += len(data)

    def _write(self, data: bytes | memoryview, offset: int) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            written = os.pwrite(self._handle, rest, offset)
            rest, offset = rest[written:], offset + written


def sweep(folder: str) -> int:
    """Remove what an earlier run left unfinished; returns how many files."""
    stale = [entry.path for entry in os.scandir(folder) if entry.name.endswith(SUFFIX + PART)]
    for path in stale:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return len(stale)


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: Any, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def _new_hash() -> Hash:
    return xxh3_64() if HASH == "xxh3" else _Crc32()


_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}
