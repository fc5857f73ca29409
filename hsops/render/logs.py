"""What went wrong in a log, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from hsops.core.log_errors import LogError

SHOWN = 20


def error_lines(cause: LogError | None, others: Sequence[LogError], lines: int) -> Iterator[str]:
    """The cause with its place, then the others in the log's order."""
    if cause is None:
        yield f"nothing went wrong in {lines:,} lines"
        return
    yield from _lines("cause", cause)
    for error in others[:SHOWN]:
        yield from _lines(error.role, error)
    if len(others) > SHOWN:
        yield f"... and {len(others) - SHOWN} more   hsops logs --errors --json has them all"


def _lines(role: str, error: LogError) -> Iterator[str]:
    time = datetime.fromtimestamp(error.time, timezone.utc).strftime("%H:%M:%S") if error.time is not None else ""
    place = "  ".join(word for word in (error.host, f"line {error.line:,}", error.rank or "main", time) if word)
    yield f"{role:<7}{place}  {error.said[:300]}"
    if error.last and error.text != error.last:
        yield f"       {error.text[:300]}"
    if error.frame:
        yield f"       {error.frame[:300]}"
