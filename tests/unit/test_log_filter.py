"""Some of a log's lines, byte for byte."""

from __future__ import annotations

import pytest

from hsops.core.log_filter import LogFilter
from hsops.core.log_lines import MAIN, stamp
from hsops.core.units import duration

LOG = (
    b"launcher says hello\n"
    b"[2026-11-29 17:44:00 TP0] Load weight begin.\n"
    b"[2026-11-29 17:44:01 TP1] Scheduler hit an exception: Traceback\n"
    b'  File "x.py", line 1, in f\n'
    b"ValueError: \xff\xfe\r\n"
    b"[2026-11-29 17:44:02] INFO:     Started\n"
    b"[2026-11-29 17:45:00 TP0] Load weight end."
)
AT = stamp(b"[2026-11-29 17:44:02] x")


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    "rank,since,wanted",
    [
        (None, None, (0, 1, 2, 3, 4, 5, 6)),
        ("TP0", None, (1, 6)),
        ("TP1", None, (2, 3, 4)),
        (MAIN, None, (0, 5)),
        (None, AT, (5, 6)),
        ("TP0", AT, (6,)),
        ("TP3", None, ()),
    ],
)
def test_lines_that_are_wanted(
    rank: str | None, since: tuple[float, str] | None, wanted: tuple[int, ...], size: int
) -> None:
    """A traceback goes with the line that began it; bytes stay as they are, wherever the pieces are cut."""
    log = LogFilter(rank=rank, since=since[0] if since else None)

    found = b"".join(line for i in range(0, len(LOG), size) for line in log.feed(LOG[i : i + size])) + log.tail()

    assert found == b"".join(LOG.splitlines(keepends=True)[i] for i in wanted)


@pytest.mark.parametrize(
    "text,seconds",
    [
        ("90s", 90),
        ("10m", 600),
        ("1.5h", 5400),
        ("1h 30m", 5400),
        ("2d", 172800),
        ("ten", None),
        ("10", None),
        ("", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    """As people write them; a bare number could be anything."""
    assert duration(text) == seconds
