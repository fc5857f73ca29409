"""prompts.jsonl: one ``{"id": ..., "input_ids": [...]}`` a line, or ``text`` instead of ``input_ids``.

The whole file is checked before anything is sent: every fault at once, with line and column.
"""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO

from hsops.core.dumps import SAMPLE_ID, token_bytes
from hsops.core.errors import ConfigError, Fault
from hsops.core.json_place import column

LONGEST_LINE = 32 << 20  # bytes; about 4 million tokens
LARGEST_TOKEN = 2**31 - 1
SHOWN = 100  # faults; a file that is wrong throughout needs no more
FORMAT = 'one {"id": "...", "input_ids": [...]} a line; see docs/how-to/extract-and-fetch.md'
_HALF = re.compile("[\ud800-\udfff]")  # a lone surrogate, which no UTF-8 can carry to the server
_BODIES = ("input_ids", "text", "messages")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    Args:
        id: becomes the dump's file name.
        line: in the file, from 1.
        tokens: ``token_bytes`` of the token ids; empty while only ``text`` is known.
        text: to be tokenised by the server; empty when ``tokens`` are given.
        mask: ``loss_mask``, one byte a token, 0 or 1: what a drafter learns from. Empty when none is given.
    """

    id: str
    line: int
    tokens: bytes
    text: str = ""
    mask: bytes = b""

    @property
    def count(self) -> int:
        """Number of tokens."""
        return len(self.tokens) // 8

    def ids(self) -> array[int]:
        """The token ids as integers."""
        ids = array("q", self.tokens)
        if sys.byteorder == "big":
            ids.byteswap()
        return ids


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """All prompts of a file, checked.

    Raises:
        ConfigError: with every fault of the file (the first hundred).
    """
    reader = _Reader(str(path))
    try:
        with path.open("rb") as file:
            prompts = tuple(reader.prompts(file))
    except FileNotFoundError:
        raise ConfigError([Fault(str(path), 0, 0, "", "no such file")], fix=f"prompts are JSONL: {FORMAT}") from None
    except OSError as error:
        raise ConfigError([Fault(str(path), 0, 0, "", f"cannot be read: {error.strerror}")]) from None
    faults = reader.faults
    if not prompts and not faults:
        faults = [Fault(str(path), 0, 0, "", "no prompts in it")]
    if faults:
        raise ConfigError(shorten(faults), fix=f"prompts are JSONL: {FORMAT}")
    return prompts


def shorten(faults: list[Fault]) -> list[Fault]:
    """At most ``SHOWN`` faults, and one that says how many more there are."""
    if len(faults) <= SHOWN:
        return faults
    more = Fault(faults[0].file, 0, 0, "", f"and {len(faults) - SHOWN:,} more faults")
    return [*faults[:SHOWN], more]


class _Reader:
    """Reads one file; collects faults and the lines of ids."""

    def __init__(self, file: str) -> None:
        self.file, self.faults, self._lines = file, list[Fault](), dict[str, int]()

    def prompts(self, file: BinaryIO) -> Iterator[Prompt]:
        for number, raw in enumerate(_lines(file), 1):
            if raw is None:
                self._fault(number, 1, "", f"the line is longer than {LONGEST_LINE >> 20} MiB")
            elif raw.strip():
                text = self._decode(number, raw)
                prompt = None if text is None else self._prompt(number, text)
                if prompt is not None:
                    yield prompt

    def _decode(self, number: int, raw: bytes) -> str | None:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            before = raw[: error.start].decode("utf-8")
            self._fault(number, len(before) + 1, "", f"not UTF-8: byte 0x{raw[error.start]:02x}")
            return None
        return text.rstrip("\r\n")

    def _prompt(self, number: int, text: str) -> Prompt | None:
        before = len(self.faults)
        value = self._json(number, text)
        if value is None:
            return None
        id_ = self._id(number, text, value)
        body = self._body(number, text, value)
        mask = self._mask(number, text, value) if "loss_mask" in value else b""
        if len(self.faults) > before or body is None or id_ is None:
            return None
        return Prompt(id_, number, *body, mask)

    def _json(self, number: int, text: str) -> dict[str, Any] | None:
        twice: list[str] = []

        def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
            value = dict(items)
            if len(value) < len(items):
                keys = [key for key, _ in items]
                twice.extend(key for key in value if keys.count(key) > 1 and key in ("id", *_BODIES))
            return value

        try:
            value = json.loads(text, object_pairs_hook=pairs)
        except json.JSONDecodeError as error:
            self._fault(number, error.colno, "", f"not JSON: {error.msg}")
            return None
        except (ValueError, RecursionError) as error:  # an integer of thousands of digits, brackets without end
            self._fault(number, 1, "", f"not JSON that can be read: {error}")
            return None
        if not isinstance(value, dict):
            self._fault(number, column(text), "", f"expected an object, got {_shown(value)}")
            return None
        for key in twice:
            self._fault(number, column(text, key), key, "given twice on this line")
        return value

    def _id(self, number: int, text: str, value: dict[str, Any]) -> str | None:
        if "id" not in value:
            self._missing(number, text, value, "id")
            return None
        id_ = value["id"]
        if not isinstance(id_, str):
            self._fault(number, column(text, "id"), "id", f"expected text, got {_shown(id_)}")
        elif not SAMPLE_ID.match(id_):
            rule = "letters, digits, '.', '_', '-', at most 160, and not '.' first: it becomes a file name"
            self._fault(number, column(text, "id"), "id", f"{_shown(id_)} is not safe: {rule}")
        elif first := self._lines.get(id_):
            self._fault(number, column(text, "id"), "id", f"{id_!r} is given twice; first at line {first}")
        else:
            self._lines[id_] = number
            return id_
        return None

    def _body(self, number: int, text: str, value: dict[str, Any]) -> tuple[bytes, str] | None:
        given = [key for key in _BODIES if key in value]
        if not given:
            self._missing(number, text, value, "input_ids")
        elif len(given) > 1:
            self._fault(number, column(text, given[1]), given[1], f"besides {given[0]!r}; give one of them")
        elif given[0] == "messages":
            why = "a chat template's result cannot be verified here; render it to 'input_ids' (or 'text') yourself"
            self._fault(number, column(text, "messages"), "messages", why)
        elif given[0] == "text":
            return self._text(number, text, value["text"])
        else:
            return self._tokens(number, text, value["input_ids"])
        return None

    def _text(self, number: int, text: str, value: Any) -> tuple[bytes, str] | None:
        if isinstance(value, str) and value:
            if half := _HALF.search(value):
                self._fault(number, column(text, "text"), "text", f"half a character in it: {half[0]!r}")
                return None
            return b"", value
        self._fault(number, column(text, "text"), "text", f"expected text that is not empty, got {_shown(value)}")
        return None

    def _tokens(self, number: int, text: str, ids: Any) -> tuple[bytes, str] | None:
        if not isinstance(ids, list) or not ids:
            message = "empty" if ids == [] else f"expected a list of token ids, got {_shown(ids)}"
            self._fault(number, column(text, "input_ids"), "input_ids", message)
            return None
        if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) <= LARGEST_TOKEN:
            return token_bytes(ids), ""
        bad = [i for i, token in enumerate(ids) if type(token) is not int or not 0 <= token <= LARGEST_TOKEN]
        where, more = f"input_ids[{bad[0]}]", f" (and {len(bad) - 1} more on this line)" if len(bad) > 1 else ""
        message = f"expected a token id, got {_shown(ids[bad[0]])}{more}"
        self._fault(number, column(text, "input_ids", bad[0]), where, message)
        return None

    def _mask(self, number: int, text: str, value: dict[str, Any]) -> bytes:
        mask, ids = value["loss_mask"], value.get("input_ids")
        if not isinstance(mask, list) or not mask:
            message = "empty" if mask == [] else f"expected a list of 0 and 1, got {_shown(mask)}"
            self._fault(number, column(text, "loss_mask"), "loss_mask", message)
        elif bad := [i for i, item in enumerate(mask) if type(item) is not int or item not in (0, 1)]:
            where = f"loss_mask[{bad[0]}]"
            message = f"expected 0 or 1, got {_shown(mask[bad[0]])}"
            self._fault(number, column(text, "loss_mask", bad[0]), where, message)
        elif isinstance(ids, list) and len(ids) != len(mask):
            message = f"{len(mask):,} of them for {len(ids):,} input_ids"
            self._fault(number, column(text, "loss_mask"), "loss_mask", message)
        else:
            return bytes(mask)
        return b""

    def _missing(self, number: int, text: str, value: dict[str, Any], key: str) -> None:
        close = get_close_matches(key, [k for k in value if k not in ("id", *_BODIES)], n=1, cutoff=0.6)
        hint = f"; did you mean {key!r} by {close[0]!r}?" if close else ""
        self._fault(number, column(text), "", f"{key!r} is missing{hint}")

    def _fault(self, line: int, column_: int, where: str, message: str) -> None:
        self.faults.append(Fault(self.file, line, column_, where, message))


def _lines(file: BinaryIO) -> Iterable[bytes | None]:
    """Lines; None for one that is too long, which is passed over without being held."""
    while raw := file.readline(LONGEST_LINE + 1):
        if len(raw) <= LONGEST_LINE:
            yield raw
            continue
        while not raw.endswith(b"\n") and (raw := file.readline(LONGEST_LINE)):
            pass
        yield None


def _shown(value: Any) -> str:
    """A value for a message, as JSON has it, shortened."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
