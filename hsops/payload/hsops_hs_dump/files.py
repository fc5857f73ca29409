"""A dump while it is written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import zlib
from typing import Any, Protocol

from .layout import Layout

try:
    from xxhash import xxh3_64
except ImportError:  # crc32 then: 1.1 GB/s instead of 10 and more, but always there
    xxh3_64 = None  # type: ignore[assignment,misc]

HASH = "crc32" if xxh3_64 is None else "xxh3"

SUFFIX, PART = ".safetensors", ".part"
FILE_MODE = 0o644


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
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        os.makedirs(folder, exist_ok=True)  # somebody may remove it to make room while the server runs
        self._handle = os.open(self._path + PART, flags, FILE_MODE)
        try:
            self._reserve(layout.size(self._header))
            self._put(self._header, 0)
        except OSError:
            self.discard()
            raise

    def rows(self, position: int, data: memoryview, ids: bytes) -> None:
        """Write the rows from ``position`` on, which is where the last ones ended, and remember their token ids."""
        if position != self._have:
            raise OSError(f"rows {position} and on came where row {self._have} was due")
        self._put(data, len(self._header) + position * self.layout.row)
        self._ids += ids
        self._have += len(ids) // 8

    def finish(self) -> dict[str, Any]:
        """Give the file its name; returns what the manifest's line says of it."""
        if self._have != self.layout.tokens:
            raise OSError(f"{self._have} of {self.layout.tokens} rows at the end")
        ids = bytes(self._ids)
        self._put(ids, len(self._header) + self.layout.tokens * self.layout.row)
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

    def _put(self, data: bytes | memoryview, offset: int) -> None:
        self._hash.update(data)
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
