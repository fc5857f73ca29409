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


def size(count: float) -> str:
    """Bytes for people, in binary units: ``924 GiB``, ``1.02 GiB``, ``512 B``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
