"""The checksum of a file that comes in pieces, summed up while others still come."""

from __future__ import annotations

from pathlib import Path

from hsops.core.checksum import Digest


class Prefix:
    """What of one file is here from its start on, read once and as soon as it is.

    A file of a terabyte that was read only after its last piece would keep whoever waits for it for many minutes.

    Args:
        kind: of the checksum of the file.
    """

    def __init__(self, kind: str) -> None:
        self._digest, self._at = Digest(kind), 0
        self._ends: dict[int, int] = {}  # of pieces that are here and not read yet, by their starts

    def add(self, path: Path, start: int, end: int) -> None:
        """A piece is in the part file and will not be written again; read on as far as there is no gap.

        Raises:
            OSError: the file cannot be read.
        """
        self._ends[start] = end
        while (more := self._ends.pop(self._at, None)) is not None and more > self._at:
            self._digest.update_from(path, self._at, more)
            self._at = more

    def finish(self, path: Path) -> str:
        """``kind:hex`` of the whole file, of which only the rest is read now.

        Raises:
            OSError: the file cannot be read.
        """
        self._digest.update_from(path, self._at)
        return str(self._digest)
