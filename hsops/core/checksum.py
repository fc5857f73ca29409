"""Checksums of whole files, by the names that the manifest uses."""

from __future__ import annotations

import hashlib
import zlib
from functools import cache
from pathlib import Path
from typing import Any

_PIECE = 1 << 20


@cache
def _xxhash() -> Any:
    """When it is needed first: an import statement costs as much as the checksum of a small file."""
    import xxhash

    return xxhash


class Digest:
    """A checksum that grows.

    Args:
        kind: ``xxh3`` (XXH3-64, about 10 GB/s), ``crc32`` (about 2 GB/s) or ``sha256`` (about 1 GB/s).

    Raises:
        ValueError: another kind.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self._crc = kind, 0
        self._digest: Any = None
        if kind == "xxh3":
            self._digest = _xxhash().xxh3_64()
        elif kind == "sha256":
            self._digest = hashlib.sha256()
        elif kind != "crc32":
            raise ValueError(kind)

    def update(self, data: memoryview | bytes) -> None:
        """Add bytes."""
        if self._digest is None:
            self._crc = zlib.crc32(data, self._crc)
        else:
            self._digest.update(data)

    def update_from(self, path: Path, start: int = 0, end: int | None = None) -> None:
        """Add a file's bytes from ``start`` to ``end``, or to its own end.

        Raises:
            OSError: the file cannot be read.
        """
        left = (path.stat().st_size if end is None else end) - start
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            piece = memoryview(bytearray(min(_PIECE, max(1, left))))
            while left > 0 and (count := file.readinto(piece[:left])):
                self.update(piece[:count])
                left -= count

    def __str__(self) -> str:
        """``xxh3:<16 hex>``, ``crc32:<8 hex>`` or ``sha256:<64 hex>``."""
        return f"{self.kind}:" + (f"{self._crc:08x}" if self._digest is None else str(self._digest.hexdigest()))


def checksum_of_bytes(data: memoryview | bytes, kind: str) -> str:
    """``kind:hex`` of bytes.

    Raises:
        ValueError: another kind.
    """
    if kind == "xxh3":  # nearly always
        return f"xxh3:{_xxhash().xxh3_64_hexdigest(data)}"
    digest = Digest(kind)
    digest.update(data)
    return str(digest)


def kind_of(checksum: str) -> str:
    """``xxh3`` of ``xxh3:0123...``."""
    return checksum.partition(":")[0]


def checksum_of(path: Path, kind: str, start: int = 0, end: int | None = None) -> str:
    """``kind:hex`` of a file or of a stretch of it.

    Raises:
        OSError: the file cannot be read.
    """
    digest = Digest(kind)
    digest.update_from(path, start, end)
    return str(digest)


def matches(path: Path, checksum: str) -> bool:
    """Whether the file has this checksum (``<kind>:<hex>``).

    Raises:
        OSError: the file cannot be read.
    """
    return checksum_of(path, kind_of(checksum)) == checksum
