"""Checksums of whole files, by the names that the manifest uses."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

_PIECE = 1 << 20


class Digest:
    """A checksum that grows.

    Args:
        kind: ``xxh3`` (XXH3-64, about 10 GB/s) or ``crc32`` (about 2 GB/s).

    Raises:
        ValueError: another kind.
    """

    def __init__(self, kind: str) -> None:
        if kind not in ("xxh3", "crc32"):
            raise ValueError(kind)
        self._crc = 0
        self._xxh3: Any = None
        if kind == "xxh3":
            import xxhash

            self._xxh3 = xxhash.xxh3_64()

    def update(self, data: memoryview | bytes) -> None:
        """Add bytes."""
        if self._xxh3 is None:
            self._crc = zlib.crc32(data, self._crc)
        else:
            self._xxh3.update(data)

    def update_from(self, path: Path, most: int | None = None) -> None:
        """Add a file's bytes, at most the first ``most``.

        Raises:
            OSError: the file cannot be read.
        """
        left = path.stat().st_size if most is None else most
        with path.open("rb", buffering=0) as file:
            piece = memoryview(bytearray(min(_PIECE, max(1, left))))
            while left and (count := file.readinto(piece[:left])):
                self.update(piece[:count])
                left -= count

    def __str__(self) -> str:
        """``xxh3:<16 hex>`` or ``crc32:<8 hex>``."""
        return f"crc32:{self._crc:08x}" if self._xxh3 is None else f"xxh3:{self._xxh3.hexdigest()}"


def kind_of(checksum: str) -> str:
    """``xxh3`` of ``xxh3:0123...``."""
    return checksum.partition(":")[0]


def matches(path: Path, checksum: str) -> bool:
    """Whether the file has this checksum (``<kind>:<hex>``).

    Raises:
        OSError: the file cannot be read.
    """
    digest = Digest(kind_of(checksum))
    digest.update_from(path)
    return str(digest) == checksum
