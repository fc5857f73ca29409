"""Who changed this host, when and what: ``<state_dir>/audit.jsonl``, a line a change, each with the hash of the last.

A line: ``{"seq", "prev", "time", "action", "who", "pid", "command", "what", "reason",
"machine", "outcome", ...}``; ``prev``:
the sha256 of the line before, without its newline. ``audit.head`` holds number and hash of the last line and the length
of the file: a changed, inserted or removed line breaks the chain, a shortened file does not reach its head.

A change of files puts its line into its journal, so that one which a crash leaves out is written by the next verb.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

from hsops.agent.patch_site import sync_folder, write_file
from hsops.agent.protocol import Refusal

START = "0" * 64
_WAIT_S = 5.0  # for another line to be written; they begin anew with each
_BLOCK = 1 << 16
_NEAR = 1 << 20  # bytes at the end in which a change's line is looked for
_LONGEST = 16 << 20  # bytes of a line
_MOST = 16 << 20  # bytes of lines in one answer
_FAULTS = 100


def append(state_dir: str, entry: dict[str, Any], change: str = "") -> None:
    """Write a line durably.

    Args:
        entry: its fields, but for ``seq``, ``prev``, ``time`` and ``machine``.
        change: the id of what it tells of; when a line of the end has it already, nothing is written.

    Raises:
        OSError: it cannot be written.
        Refusal: ``locked``: somebody else writes and does not come to an end.
    """
    folder = _folder(state_dir)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with _opened(folder) as file:
        head = _settled(file, _head(folder))
        if change and f'"change":"{change}"'.encode() in _end_of(file):
            return
        told = {"seq": head["seq"] + 1, "prev": head["hash"], "time": round(time.time(), 3), **entry}
        line = json.dumps({**told, "machine": os.uname().nodename, "change": change}, separators=(",", ":")).encode()
        size = file.seek(0, os.SEEK_END)
        file.write((b"" if not size or _last_byte(file) == b"\n" else b"\n") + line + b"\n")
        file.flush()
        os.fsync(file.fileno())
        _write_head(folder, told["seq"], _hash(line), file.tell())
        if not size:
            sync_folder(folder)


def read(params: dict[str, Any]) -> dict[str, Any]:
    """Verb ``audit-read``. ``params``: ``limit``, the last so many lines; ``verify``: walk the whole chain.

    Result: ``lines``, oldest first; ``total``, how many there are by the head; ``faults`` [{``line``: its number or 0,
    ``what``}], the first hundred, only with ``verify``.
    """
    folder = _folder(params["state_dir"])
    path = os.path.join(folder, "audit.jsonl")
    head = _head(folder)
    faults = _faults(path, head) if params.get("verify") else []
    if not os.path.exists(path):
        return {"lines": [], "total": 0, "faults": faults}
    with open(path, "rb") as file:
        lines = [told for line in _last_lines(file, int(params.get("limit", 20))) if (told := _parsed(line))]
    return {"lines": lines, "total": head["seq"], "faults": faults}


def _faults(path: str, head: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    number, seq, previous = 0, 0, START
    try:
        with open(path, "rb") as file:
            while line := file.readline(_LONGEST):
                number += 1
                told = _parsed(line)
                if told is None:
                    found.append({"line": number, "what": "is not what hsops wrote"})
                elif told["prev"] != previous:
                    found.append({"line": number, "what": _broken(number, told["seq"], seq)})
                seq, previous = told["seq"] if told else seq + 1, _hash(line.rstrip(b"\n"))
    except FileNotFoundError:
        return [{"line": 0, "what": f"audit.jsonl is gone; it had {head['seq']} lines"}] if head["seq"] else []
    if head["seq"] == 0 and number:
        found.append({"line": 0, "what": "audit.head is gone: nothing tells whether lines are missing at the end"})
    elif head["seq"] > seq:
        found.append({"line": number + 1, "what": f"the last {head['seq'] - seq} lines are missing"})
    elif head["seq"] == seq and head["hash"] != previous:
        found.append({"line": number, "what": "was changed"})
    return found[:_FAULTS]


def _broken(number: int, seq: int, before: int) -> str:
    if seq > before + 1:
        return f"missing before it: {seq - before - 1} line" + "s" * (seq - before > 2)
    if seq <= before:
        return "does not follow: a line was inserted, or the order changed"
    return f"does not follow: line {number - 1} was changed" if number > 1 else "does not begin the file"


def _settled(file: BinaryIO, head: dict[str, Any]) -> dict[str, Any]:
    """The head, moved past lines whose head a crash left out. A line that is cut short goes; nothing else is mended."""
    size = file.seek(0, os.SEEK_END)
    if size <= head["bytes"] or size - head["bytes"] > _LONGEST:
        return head
    file.seek(head["bytes"])
    tail = file.read()
    whole, newline, cut = tail.rpartition(b"\n")
    if cut:
        file.truncate(size - len(cut))
    for line in whole.split(b"\n") if newline else ():
        told = _parsed(line)
        if told and told["prev"] == head["hash"]:
            head = {"seq": told["seq"], "hash": _hash(line), "bytes": head["bytes"]}
    return head


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[BinaryIO]:
    """The file, for one writer at a time; whoever waits does so as long as others write."""
    path = os.path.join(folder, "audit.jsonl")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "r+b") as file:
        size, until = -1, 0.0
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                seen, now = os.fstat(handle).st_size, time.monotonic()
                if seen != size:
                    size, until = seen, now + _WAIT_S
                elif now > until:
                    raise Refusal("locked", f"another process has {path} and does not go on") from None
                time.sleep(0.01)
        yield file


def _last_lines(file: BinaryIO, limit: int) -> list[bytes]:
    at, held = file.seek(0, os.SEEK_END), b""
    while at > 0 and held.count(b"\n") <= limit and len(held) < _MOST:
        step = min(_BLOCK, at)
        at -= step
        file.seek(at)
        held = file.read(step) + held
    lines = held.splitlines()
    return (lines if at == 0 else lines[1:])[-limit:] if limit > 0 else []


def _end_of(file: BinaryIO) -> bytes:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _NEAR))
    return file.read()


def _last_byte(file: BinaryIO) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)


def _head(folder: str) -> dict[str, Any]:
    try:
        with open(os.path.join(folder, "audit.head"), "rb") as file:
            told = json.load(file)
        return {"seq": int(told["seq"]), "hash": str(told["hash"]), "bytes": int(told["bytes"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"seq": 0, "hash": START, "bytes": 0}


def _write_head(folder: str, seq: int, digest: str, size: int) -> None:
    told = {"seq": seq, "hash": digest, "bytes": size}
    write_file(os.path.join(folder, "audit.head"), json.dumps(told).encode())


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
        return dict(told) if isinstance(told["seq"], int) and isinstance(told["prev"], str) else None
    except (ValueError, KeyError, TypeError):
        return None


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _folder(state_dir: str) -> str:
    return os.path.abspath(os.path.expanduser(state_dir))
