"""SGLang versions: ``0.5.9``, ``0.5.10rc1``, ``0.5.12.post1``, compared by their numbers."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"^v?(\d+(?:\.\d+)*)")


def numbers(version: str) -> tuple[int, ...]:
    """``0.5.12.post1`` -> ``(0, 5, 12)``; ``()`` for anything that does not start like a version."""
    match = _NUMBERS.match(version)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def within(version: str, since: str = "", until: str = "") -> bool:
    """``since <= version <= until``; an open end is ""; an unknown version is within open ends only."""
    own = numbers(version)
    if not own:
        return not since and not until
    return (not since or own >= numbers(since)) and (not until or own <= numbers(until))
