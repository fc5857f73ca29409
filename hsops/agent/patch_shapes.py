"""Are a record and a journal what the engine wrote? A damaged one must be told, not followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Check = Callable[[Any], "dict[str, Any]"]


def check_record(told: Any) -> dict[str, Any]:
    """``told`` itself.

    Raises:
        TypeError, KeyError: it is no record.
    """
    for key in ("serial", "identity"):
        _of(told[key], str, key)
    _of(told["applied"], (int, float), "applied")
    for entry in _of(told["files"], list, "files"):
        _of(entry["path"], str, "path")
        _of(entry["cache"], bool, "cache")
        _state(entry["original"])
        _state(entry["after"])
    _texts(told["folders"])
    return dict(_of(told, dict, "the whole"))


def check_journal(told: Any) -> dict[str, Any]:
    """``told`` itself. Raises as ``check_record``."""
    _of(told["after"], (str, type(None)), "after")
    for change in _of(told["changes"], list, "changes"):
        _of(change["path"], str, "path")
        _state(change["before"])
        _state(change["after"])
    _of(told.get("change", ""), str, "change")
    _of(told.get("audit", {}), dict, "audit")
    _texts(told["made"])
    _texts(told["removed"])
    return dict(_of(told, dict, "the whole"))


def _state(told: Any) -> None:
    if told is None:
        return
    _of(told["sha256"], str, "sha256")
    _of(told["mode"], int, "mode")
    for key in ("mtime_ns", "uid", "gid"):
        _of(told.get(key, 0), int, key)
    if len(told["sha256"]) != 64 or not set(told["sha256"]) <= set("0123456789abcdef"):
        raise TypeError("sha256 is no SHA-256")


def _texts(told: Any) -> None:
    for one in _of(told, list, "folders"):
        _of(one, str, "a folder")


def _of(value: Any, kind: Any, name: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {type(value).__name__}")
    return value
