"""What names, paths and words of a user's files may be. Without pydantic, whose types are made of this in ``names``."""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_NAME_MAX = 255  # bytes, on every file system of Linux
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def a_name(value: str) -> str:
    """``value``, a name of something in the inventory; ValueError when it is none."""
    if not NAME.match(value):
        raise ValueError(f"{value!r} is not a name: letters, digits, '.', '_', '-', at most 63")
    return value


def plain(value: str) -> str:
    """Text that goes into a command line, a file or a URL: a control character there is never meant."""
    if bad := _CONTROL.search(value):
        raise ValueError(f"{value!r} has the control character {bad[0]!r}")
    return value


def a_remote_path(value: str) -> str:
    """``value``, an absolute path on the host; ValueError when it is none."""
    if not value.startswith(("/", "~/")):
        raise ValueError(f"{value!r} is not an absolute path on the host (start with / or ~/)")
    return plain(value)


def a_relative_path(value: str) -> str:
    """``value`` without ``./`` in front, a plain path below some folder; ValueError when it is none."""
    parts = plain(value).removeprefix("./").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{value!r} is not a plain path below root: no leading or double '/', no '..'")
    if (longest := max(len(part.encode(errors="surrogateescape")) for part in parts)) > _NAME_MAX:
        raise ValueError(f"{value[:40]!r}... has a name of {longest} bytes in it: the most is {_NAME_MAX}")
    return "/".join(parts)
