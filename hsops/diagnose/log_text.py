"""What a log says beside its milestones: how long it has been silent, its last news, its words."""

from __future__ import annotations

import re
from datetime import datetime

from hsops.core.log_lines import readable
from hsops.core.milestones import LogReader, LogSummary
from hsops.diagnose.evidence import Log

_STAMP = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]*\] ?")
_TAG = re.compile(r"^\[(?:\d\d:\d\d:\d\d )?[DTPE]P\d+[^\]]*\] ?")
# Answers to whoever asks, hsops included: they prove that the HTTP process lives, and nothing about the schedulers.
_NOISE = re.compile(
    r'"GET /(health\w*|metrics|v1/(models|loads)|get_load|(get_)?(model|server)_info|ping)\b[^"]*"'
    r"|Health check request received|Endpoint '/get_load' is deprecated"
    r"|Health check failed\. Server couldn't"  # 20 s after each look at a server that hangs, which is no sign of work
)
_HARMLESS = re.compile(r"server_args=|Ignore import error|UserWarning|FutureWarning|DeprecationWarning")
_NEWS = 5
_LONGEST = 4000
_LONG = 160  # of a finding
_QUARTER = 900
_SKEW_S = 1.0


def read_log(
    path: str,
    data: bytes,
    *,
    tp: int | None = None,
    lines: int | None = None,
    now: float | None = None,
    started: float | None = None,
    changed: float | None = None,
    grew: int = 0,
) -> Log:
    """A log as evidence.

    Args:
        data: its bytes; of a very long one, its beginning and its end.
        lines: of the whole file, where ``data`` is not all of it.
        now, started: the host's clock at the look and at the server's start, seconds since the epoch.
        changed: seconds since the file was written to last.
        grew: bytes that were added while the probes ran.
    """
    reader = LogReader(tp=tp)
    reader.feed(data if data.endswith(b"\n") else data + b"\n")
    summary = reader.summary()
    rows = [row for row in readable(data).decode(errors="replace").splitlines() if row.strip()]
    news_at, noise_at = _moments(rows, summary)
    return Log(
        path=path,
        summary=summary,
        text="\n".join(row[:_LONGEST] for row in rows if not _HARMLESS.search(row)),
        lines=summary.lines if lines is None else lines,
        answers=sum(map(is_noise, rows)),
        silent_s=_silence(rows, (news_at, noise_at), _clock(summary, now, started), changed),
        waited_s=max(0.0, noise_at - news_at) if noise_at and news_at else 0.0,
        news=tuple(row for row in rows if not is_noise(row))[-_NEWS:],
        grew=grew,
    )


def is_noise(row: str) -> bool:
    """A line that only answers a probe, or complains of one."""
    return bool(_NOISE.search(row))


def cut(text: str) -> str:
    """At most one line of a terminal or two."""
    return text if len(text) <= _LONG else text[: _LONG - 3] + "..."


def message(row: str) -> str:
    """A line without its stamp."""
    return _TAG.sub("", _STAMP.sub("", row)).strip()


def _moments(rows: list[str], summary: LogSummary) -> tuple[float | None, float | None]:
    """When the last news and the last answer to a probe were stamped.

    A milestone is news even where it reads like an answer: the warm-up's own ``GET /model_info``.
    """
    news, noise = None, None
    for row in rows:
        match = _STAMP.match(row)
        moment = _seconds(match.group(1)) if match else None
        if moment is not None and is_noise(row):
            noise = moment
        elif moment is not None:
            news = moment
    marks = [mark.time for ranks in summary.reached.values() for mark in ranks.values() if mark.time is not None]
    moments = [m for m in (news, *marks) if m is not None]
    return (max(moments) if moments else None), noise


def _silence(
    rows: list[str], moments: tuple[float | None, float | None], now: float | None, changed: float | None
) -> float | None:
    news_at, noise_at = moments
    if changed is not None and changed < -_SKEW_S:  # written in the future: the clock of the file's disk is another
        return max(0.0, now - news_at) if news_at is not None and now is not None else 0.0
    if changed is None or not rows or not is_noise(rows[-1]):
        return changed  # the last line is news: the file's own time is exact, and unstamped lines count
    if news_at is not None and noise_at is not None:
        return max(0.0, noise_at - news_at) + changed
    return max(0.0, now - news_at) if news_at is not None and now is not None else changed


def _clock(summary: LogSummary, now: float | None, started: float | None) -> float | None:
    """``now`` by the clock that stamps the log, whose time zone the server's environment may set.

    Its first stamp comes within minutes of the start; zones differ by quarters of an hour.
    """
    if now is None or started is None or summary.first_time is None:
        return None
    return now + round((summary.first_time - started) / _QUARTER) * _QUARTER


def _seconds(stamp: str) -> float | None:
    """Comparable with the times of ``LogSummary``, which read the stamps as if they were UTC."""
    try:
        return datetime.fromisoformat(f"{stamp}+00:00").timestamp() if stamp else None
    except ValueError:
        return None
