"""The audit log, for people."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from hsops.core.units import counted
from hsops.remote.audit import Audit


def lines(host: str, audit: Audit, *, verified: bool) -> Iterator[str]:
    """A line a change, oldest first, then what is wrong with the chain."""
    if not audit.lines:
        yield f"{host}: nothing was changed here, as far as the audit log knows"
    for told in audit.lines:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(_number(told.get("time"))))
        yield f"{told['seq']:>5}  {when}  {host}  {_text(told, 'action'):8} {_what(told)}  by {_by(told)}"
    yield from (f"{host}: audit.jsonl:{line}: {what}" if line else f"{host}: {what}" for line, what in audit.faults)
    if verified and not audit.faults:
        yield f"{host}: the chain of {audit.total} lines is whole"


def _what(told: dict[str, Any]) -> str:
    outcome = _text(told, "outcome")
    end = "" if outcome == "done" else f"  ({outcome})"
    if "patch" in told:
        files = told.get("files")
        count = len(files) if isinstance(files, list) else 0
        change = f"{told.get('before') or '-'} -> {told.get('after') or '-'}"
        return f"{_text(told, 'patch')} {change}, {counted(count, 'file')}{end}"
    if "run" in told:
        beside = f", beside {told['beside']}" if told.get("beside") else ""
        return f"{_text(told, 'server')}: run {told['run']}{beside}{end}"
    if "orphan" in told:
        return f"pid {_text(told, 'orphan')} ({_text(told, 'title')[:60]}){end}"
    of = told.get("of")
    if isinstance(of, dict):
        who, pid, command = (_text(of, name) for name in ("who", "pid", "command"))
        what = ": ".join(_text(of, name) for name in ("what", "reason") if of.get(name)) or "-"
        return f"the lock of {who}, pid {pid}, for {command!r} ({what}){end}"
    return end.strip()


def _by(told: dict[str, Any]) -> str:
    """Who, and why, as the user said; what an older hsops wrote as ``reason`` is what it did."""
    who = _text(told, "who")
    return f"{who}: {_text(told, 'reason')}" if "what" in told and told.get("reason") else who


def _text(told: dict[str, Any], name: str) -> str:
    """A field as plain text: the file may have been edited."""
    return "".join(c if c.isprintable() else "?" for c in str(told.get(name, "?")))[:200]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e11 else 0.0
