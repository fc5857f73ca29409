"""Names, paths and words of the files a user writes: what may be in them, checked where they are read."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FLAG = re.compile(r"-{0,2}[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _a_name(value: str) -> str:
    if not NAME.match(value):
        raise ValueError(f"{value!r} is not a name: letters, digits, '.', '_', '-', at most 63")
    return value


def _plain(value: str) -> str:
    """Text that goes into a command line, a file or a URL: a control character there is never meant."""
    if bad := _CONTROL.search(value):
        raise ValueError(f"{value!r} has the control character {bad[0]!r}")
    return value


def a_remote_path(value: str) -> str:
    """``value``, an absolute path on the host; ValueError when it is none."""
    if not value.startswith(("/", "~/")):
        raise ValueError(f"{value!r} is not an absolute path on the host (start with / or ~/)")
    return _plain(value)


def a_relative_path(value: str) -> str:
    """``value`` without ``./`` in front, a plain path below some folder; ValueError when it is none."""
    parts = _plain(value).removeprefix("./").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{value!r} is not a plain path below root: no leading or double '/', no '..'")
    return "/".join(parts)


def _a_model(value: str) -> str:
    if not value.strip() or value.startswith("-"):
        raise ValueError(f"{value!r} is neither a path on the host nor a hub id")
    return _plain(value)


def _a_variable(value: str) -> str:
    if not _VARIABLE.match(value):
        raise ValueError(f"{value!r} is not the name of an environment variable")
    return value


def _a_flag(value: str) -> str:
    if not _FLAG.match(value):
        raise ValueError(f"{value!r} is not a flag: letters, digits, '.', '_' and '-'")
    return value


Name = Annotated[str, AfterValidator(_a_name)]
RemotePath = Annotated[str, AfterValidator(a_remote_path)]
Plain = Annotated[str, AfterValidator(_plain)]
Model = Annotated[str, AfterValidator(_a_model)]
Variable = Annotated[str, AfterValidator(_a_variable)]
Flag = Annotated[str, AfterValidator(_a_flag)]
