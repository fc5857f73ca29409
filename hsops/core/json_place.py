"""Columns in a JSON text: where the value of a key or the n-th element starts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def column(text: str, *path: str | int) -> int:
    """Column, from 1, of the value at ``path`` in valid JSON; of the nearest parent when there is none.

    As in ``json.loads`` the last of equal keys counts.
    """
    at = _skip(text, 0)
    for part in path:
        found = None
        for key, start in _members(text, at):
            if key == part:
                found = start
                if isinstance(part, int):
                    break
        if found is None:
            break
        at = found
    return at + 1


def _members(text: str, at: int) -> Iterator[tuple[str | int, int]]:
    """Key or index and start of every member of the object or list that starts at ``at``."""
    opening = text[at : at + 1]
    if opening not in ("{", "["):
        return
    at, index = _skip(text, at + 1), 0
    while text[at] not in "}]":
        key: str | int = index
        if opening == "{":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)  # over the colon
        yield key, at
        _, at = _DECODER.raw_decode(text, at)
        at, index = _skip(text, at), index + 1
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
