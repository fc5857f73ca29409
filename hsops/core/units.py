"""Figures for people."""

from __future__ import annotations

import re

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def duration(text: str) -> float | None:
    """Seconds of ``90s``, ``10m``, ``2h``, ``1.5d``, ``1h 30m``; None when it is no such text."""
    parts = _DURATION.findall(text)
    whole = bool(parts) and not _DURATION.sub("", text).strip()
    return sum(float(number) * _SECONDS[unit] for number, unit in parts) if whole else None


def clock(seconds: float) -> str:
    """A duration for people: ``0:09``, ``14:50``, ``2:03:10``."""
    hours, rest = divmod(max(0, round(seconds)), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def count(number: int) -> str:
    """A count for people: ``9,999``, ``17.3 M``, ``1.2 G``."""
    value = float(number)
    for unit in ("", " k", " M"):
        if abs(value) < (10_000 if not unit else 999.5):
            return f"{value:,.0f}" if not unit else f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:,.3g} G"


def counted(number: int, word: str) -> str:
    """A number of things: ``1 error``, ``2,000 errors``, ``2 processes``."""
    return f"{number:,} {word}{'' if number == 1 else 'es' if word.endswith('s') else 's'}"


def size(count: float) -> str:
    """Bytes for people, in binary units: ``924 GiB``, ``1.02 GiB``, ``512 B``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
