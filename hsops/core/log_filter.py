"""Some of a log's lines, byte for byte: of one rank, or since a moment."""

from __future__ import annotations

from collections.abc import Iterator

from hsops.core.log_lines import MAIN, stamp


class LogFilter:
    """Feeds on bytes cut anywhere, yields whole lines. A line without a stamp goes with the one before it.

    Args:
        rank: ``TP1``, or ``MAIN`` for the main process; None for all.
        since: seconds, by the log's own stamps (local time of the host); None from the beginning.
    """

    def __init__(self, *, rank: str | None = None, since: float | None = None) -> None:
        self._rank, self._since = rank, since
        self._rest = b""
        self._shown = since is None and rank in (None, MAIN)  # lines before the first stamp are the launcher's

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that ``data`` completes and that are wanted."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._wants(line):
                yield line + b"\n"

    def tail(self) -> bytes:
        """What stands after the last line end, if it is wanted."""
        rest, self._rest = self._rest, b""
        return rest if rest and self._wants(rest) else b""

    def _wants(self, line: bytes) -> bool:
        if told := stamp(line):
            time, rank = told
            self._shown = self._rank in (None, rank) and (self._since is None or time >= self._since)
        return self._shown
