"""Prompts from whatever holds them: JSONL (plain, gzip, zstd), standard input, a dataset on disk.

All of it is checked before anything is sent: every fault at once, with line and column or the number of its row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hsops.core import prompt_lines
from hsops.core.errors import ConfigError, Fault
from hsops.core.events import Emit, Note, ignore
from hsops.core.json_place import column
from hsops.core.messages import without_none
from hsops.core.prompt_check import BODIES, CHATS, Check, Line, Row, shown
from hsops.core.prompt_lines import DamagedError, lines
from hsops.core.prompts import SHOWN, Prompt, shorten

STDIN = "-"
FORMAT = 'one {"id": "...", "input_ids": [...]} a line; see docs/how-to/extract-and-fetch.md'
_TABLES = (b"PAR1", b"ARRO", b"\xff\xff\xff\xff")  # how parquet and Arrow's two kinds of files begin
_piped: dict[str, tuple[Prompt, ...]] = {}  # what came through a pipe: nobody can read that twice


class _DamageError(Exception):
    """The file ends here, with ``fault``."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def read_prompts(source: str | Path, emit: Emit = ignore) -> tuple[Prompt, ...]:
    """All prompts, checked.

    What comes through a pipe is kept: a playbook looks at its prompts before it does anything, and again later.

    Args:
        source: a file, ``-`` for standard input, or a dataset's folder.
        emit: told what the user could not know of a dataset.

    Raises:
        ConfigError: with every fault (the first hundred).
        HsopsError: a dataset, and there is no pyarrow.
    """
    name = str(source)
    path = Path(name).expanduser()
    try:
        if name in _piped:
            return _piped[name]
        if name != STDIN and (path.is_dir() or (not path.exists() and path.parent.is_dir()) or _is_table(path)):
            return _whole(str(path), _of_dataset(path, emit))
        prompts = _whole("stdin" if name == STDIN else str(path), _of_lines(name, path))
    except FileNotFoundError:
        raise _unreadable(path, "no such file") from None
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror or error}") from None
    if name == STDIN or not path.is_file():
        _piped[name] = prompts
    return prompts


def _unreadable(path: Path, message: str) -> ConfigError:
    return ConfigError([Fault(str(path), 0, 0, "", message)], fix=f"prompts are JSONL: {FORMAT}")


def _is_table(path: Path) -> bool:
    if not path.is_file():  # a pipe: not a byte may be taken from it
        return False
    with path.open("rb") as file:
        return file.read(4) in _TABLES


def _whole(name: str, found: Iterator[Prompt | Fault]) -> tuple[Prompt, ...]:
    """The prompts, if they are without a fault and there are some."""
    prompts, faults, more = list[Prompt](), list[Fault](), 0
    try:
        for one in found:
            if isinstance(one, Prompt):
                prompts.append(one)
            elif len(faults) < SHOWN:
                faults.append(one)
            else:
                more += 1
    except _DamageError as error:
        faults.insert(0, error.fault)  # what came out of it before may be wrong because of that
    if not prompts and not faults:
        faults = [Fault(name, 0, 0, "", "no prompts in it")]
    if faults:
        raise ConfigError(shorten(faults, more), fix=f"prompts are JSONL: {FORMAT}")
    return tuple(prompts)


def _of_lines(name: str, path: Path) -> Iterator[Prompt | Fault]:
    if name == STDIN:
        if sys.stdin is None:
            yield Fault("stdin", 0, 0, "", "it is closed")
            return
        yield from _lines_of("stdin", sys.stdin.buffer)
        return
    with path.open("rb") as file:
        yield from _lines_of(str(path), file)


def _lines_of(name: str, file: BinaryIO) -> Iterator[Prompt | Fault]:
    faults, number = list[Fault](), 0
    check = Check(faults.append)
    try:
        for raw in lines(file):
            number += 1
            prompt = _of_line(name, number, raw, check, faults) if raw is None or raw.strip() else None
            yield from faults
            faults.clear()
            if prompt:
                yield prompt
    except DamagedError as error:
        raise _DamageError(Fault(name, number + 1, 1, "", str(error))) from None


def _of_line(name: str, number: int, raw: bytes | None, check: Check, faults: list[Fault]) -> Prompt | None:
    def fault(column_: int, where: str, message: str) -> None:
        faults.append(Fault(name, number, column_, where, message))

    if raw is None:
        fault(1, "", f"the line is longer than {prompt_lines.LONGEST_LINE >> 20} MiB")
        return None
    try:
        text = raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8")
        fault(len(before) + 1, "", f"not UTF-8: byte 0x{raw[error.start]:02x}")
        return None
    twice: list[str] = []
    try:
        value = json.loads(text, object_pairs_hook=lambda items: _pairs(items, twice))
    except json.JSONDecodeError as error:
        fault(error.colno, "", f"not JSON: {error.msg}")
        return None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, brackets without end
        fault(1, "", f"not JSON that can be read: {error}")
        return None
    if not isinstance(value, dict):
        fault(column(text), "", f"expected an object, got {shown(value)}")
        return None
    for key in twice:
        fault(column(text, key), key, "given twice on this line")
    return check.prompt(Line(name, number, text), value)


def _pairs(items: list[tuple[str, Any]], twice: list[str]) -> dict[str, Any]:
    """An object; which of our keys stand in it twice goes to ``twice``."""
    value = dict(items)
    if len(value) < len(items):
        keys = [key for key, _ in items]
        twice.extend(key for key in value if keys.count(key) > 1 and key in ("id", *BODIES))
    return value


def _of_dataset(path: Path, emit: Emit) -> Iterator[Prompt | Fault]:
    from hsops.core.prompt_tables import open_table

    table = open_table(path)
    bodies = [key for key in BODIES if key in table.columns]
    if not bodies:
        held = f"its columns are {', '.join(map(repr, table.columns)) or 'none'}"
        yield Fault(str(path), 0, 0, "", f"no column {', '.join(map(repr, BODIES))}; {held}")
        return
    if len(bodies) > 1:
        emit(Note(f"{path}: of the columns {', '.join(bodies)} the first is sent, the others are left alone"))
    made = "id" not in table.columns
    if made:
        emit(Note(f"{path} has no column 'id': ids are made of the row's number, row-00000000 and so on"))
    faults, nested = list[Fault](), (*CHATS, "tools")
    check = Check(faults.append)
    for item in table.rows([key for key in ("id", bodies[0], "loss_mask", "tools") if key in table.columns]):
        if isinstance(item, Fault):
            yield item
            return
        number, row = item
        value = {k: without_none(cell) if k in nested else cell for k, cell in row.items() if cell is not None}
        if made:
            value["id"] = f"row-{number:08d}"
        elif type(value.get("id")) is int:
            value["id"] = str(value["id"])
        prompt = check.prompt(Row(str(path), number), value)
        yield from faults
        faults.clear()
        if prompt:
            yield prompt
