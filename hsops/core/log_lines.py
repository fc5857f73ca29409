"""A server log as records: bytes that may be cut anywhere become lines with their number, time and rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

# some set-ups log the time without a day, or a rank alone: those count only where a line begins
_HEADER = re.compile(
    rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)((?: [A-Z]+\d+)*)\] ?"
    rb"|^\[(\d\d:\d\d:\d\d)?((?(3) | ?)[DTPE]P\d+(?: [A-Z]+\d+)*)\] ?"
)
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-_])")
_UNSEEN = bytes({*range(32), 127} - {*b"\t\n\r\x1b"})
_TP = re.compile(r"\bTP(\d{1,6})(?!\d)")
_LONGEST = 1 << 20  # a line without an end (a bar that never breaks, binary rubbish) is cut here
MAIN = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One message of the log.

    Args:
        line: its line, from 1; a progress bar's redraws share one.
        time: seconds, in the host's own clock and time zone: only differences mean something. None without a stamp.
        rank: ``TP3``; ``""`` for the main process and for every line that carries no tag (all of them at TP 1).
        text: the message without stamp, colour and line end.
        ended_by: ``\\n``, or ``\\r`` for a bar that redraws itself, or ``""`` when the next record cut in.
    """

    line: int
    time: float | None
    rank: str
    text: str
    ended_by: str = "\n"


def readable(data: bytes) -> bytes:
    """Without colours and the characters that nobody sees: a hole in a file is NULs, and ``^`` is not behind them."""
    plain = data.translate(None, _UNSEEN)
    return _ANSI.sub(b"", plain).replace(b"\x1b", b"") if b"\x1b" in plain else plain


def stamp(raw: bytes) -> tuple[float, str] | None:
    """The time and rank (``MAIN`` without a tag) of a raw line's first stamp; None when it has none."""
    match = _HEADER.search(raw)
    time = _moment(match) if match else None
    return (time, _rank(match)) if match and time is not None else None


class LineReader:
    """Feeds on bytes, yields records. Counts lines as ``wc -l`` does."""

    def __init__(self) -> None:
        self.lines = 0
        self.bytes = 0
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Record]:
        """The records that ``data`` completes, in order."""
        self.bytes += len(data)
        rest = self._rest + data
        start = 0
        for match in re.finditer(rb"[\r\n]", rest):
            end = match.group().decode()
            yield from self._segment(rest[start : match.start()], end)
            self.lines += end == "\n"
            start = match.end()
        self._rest = rest[start:]
        if len(self._rest) > _LONGEST:
            yield from self._segment(self._rest, "")
            self._rest = b""

    def tail(self) -> Iterator[Record]:
        """What stands after the last line end, without consuming it: a bar under way."""
        yield from self._segment(self._rest, "")

    def _segment(self, raw: bytes, end: str) -> Iterator[Record]:
        """Split where a stamp stands in the middle: ranks write over a bar that has not broken its line."""
        raw = readable(raw)
        headers = list(_HEADER.finditer(raw))
        first = headers[0].start() if headers else len(raw)
        if raw[:first].strip() or not headers:
            yield self._record(raw[:first], None, end if not headers else "")
        for i, header in enumerate(headers):
            last = i + 1 == len(headers)
            text = raw[header.end() : len(raw) if last else headers[i + 1].start()]
            yield self._record(text, header, end if last else "")

    def _record(self, text: bytes, header: re.Match[bytes] | None, end: str) -> Record:
        time, rank = None, MAIN
        if header:
            time = _moment(header)
            rank = _rank(header)
        return Record(self.lines + 1, time, rank, text.decode(errors="replace").rstrip(), end)


def _rank(header: re.Match[bytes]) -> str:
    tp = _TP.search((header.group(2) or header.group(4) or b"").decode())
    return f"TP{int(tp.group(1))}" if tp else MAIN


def _moment(header: re.Match[bytes]) -> float | None:
    if header.group(1):
        return _seconds(header.group(1).decode())
    return _seconds(f"1970-01-01 {header.group(3).decode()}") if header.group(3) else None


def _seconds(stamp: str) -> float | None:
    try:
        # not strptime, which takes a fifth of the time that a log of millions of lines needs
        return datetime.fromisoformat(stamp).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
