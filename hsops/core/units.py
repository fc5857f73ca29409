"""Figures for people."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes for people, in binary units: ``924 GiB``, ``1.02 GiB``, ``512 B``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
