"""What a prompt must be, whatever kind of file it comes from: every fault with its place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

from hsops.core.dumps import SAMPLE_ID, token_bytes
from hsops.core.errors import Fault
from hsops.core.json_place import column
from hsops.core.messages import chat
from hsops.core.prompts import LARGEST_TOKEN, Prompt

BODIES = ("input_ids", "messages", "conversations", "text")
"""Keys of which a prompt has one. Of a dataset's columns the first of these counts."""
CHATS = ("messages", "conversations")
_HALF = re.compile("[\ud800-\udfff]")  # a lone surrogate, which no UTF-8 can carry to the server


class Place(Protocol):
    """Where a prompt stands."""

    @property
    def number(self) -> int:
        """Of its line or row."""
        ...

    @property
    def row(self) -> bool:
        """It is a dataset's."""
        ...

    def __str__(self) -> str: ...

    def fault(self, path: Sequence[str | int], where: str, message: str) -> Fault:
        """A fault of the value at ``path`` in it; ``where`` is what the message begins with."""
        ...


@dataclass(frozen=True, slots=True)
class Line:
    """A line of JSON, ``number`` from 1."""

    file: str
    number: int
    text: str
    row: bool = False

    def __str__(self) -> str:
        return f"line {self.number}"

    def fault(self, path: Sequence[str | int], where: str, message: str) -> Fault:
        return Fault(self.file, self.number, column(self.text, *path), where, message)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a dataset, ``number`` from 0 over all its files."""

    file: str
    number: int
    row: bool = True

    def __str__(self) -> str:
        return f"row {self.number}"

    def fault(self, path: Sequence[str | int], where: str, message: str) -> Fault:  # noqa: ARG002 - it has no columns
        return Fault(self.file, 0, 0, f"{self}: {where}" if where else str(self), message)


class Check:
    """Turns values into prompts; keeps the ids that are taken.

    Args:
        told: is given each fault.
    """

    def __init__(self, told: Callable[[Fault], None]) -> None:
        self._told, self._count, self._ids = told, 0, dict[str, str]()

    def prompt(self, place: Place, value: Mapping[str, Any]) -> Prompt | None:
        """The prompt that ``value`` is; None when it has faults, which are told."""
        before = self._count
        id_ = self._id(place, value)
        key = self._body(place, value)
        tokens, text, messages = b"", "", ""
        if key == "input_ids":
            tokens = self._tokens(place, value[key])
        elif key == "text":
            text = self._text(place, value[key])
        elif key:
            messages = self._messages(place, value, key)
        mask = self._mask(place, value) if "loss_mask" in value else b""
        if self._count > before:
            return None
        return Prompt(id_, place.number, tokens, text, mask, messages, place.row)

    def _id(self, place: Place, value: Mapping[str, Any]) -> str:
        if "id" not in value:
            self._missing(place, value, "id")
            return ""
        id_ = value["id"]
        if not isinstance(id_, str):
            self._fault(place, ("id",), "id", f"expected text, got {shown(id_)}")
        elif not SAMPLE_ID.match(id_):
            rule = "letters, digits, '.', '_', '-', at most 160, and not '.' first: it becomes a file name"
            self._fault(place, ("id",), "id", f"{shown(id_)} is not safe: {rule}")
        elif first := self._ids.get(id_):
            self._fault(place, ("id",), "id", f"{id_!r} is given twice; first at {first}")
        else:
            self._ids[id_] = str(place)
            return id_
        return ""

    def _body(self, place: Place, value: Mapping[str, Any]) -> str:
        """The key of what is to be sent."""
        given = [key for key in BODIES if key in value]
        if not given:
            self._missing(place, value, "input_ids")
        elif len(given) > 1:
            self._fault(place, (given[1],), given[1], f"besides {given[0]!r}; give one of them")
        else:
            return given[0]
        return ""

    def _text(self, place: Place, value: Any) -> str:
        if not isinstance(value, str) or not value:
            self._fault(place, ("text",), "text", f"expected text that is not empty, got {shown(value)}")
        elif half := _HALF.search(value):
            self._fault(place, ("text",), "text", f"half a character in it: {half[0]!r}")
        else:
            return value
        return ""

    def _messages(self, place: Place, value: Mapping[str, Any], key: str) -> str:
        found = chat(key, value[key], value.get("tools"))
        for wrong in found.faults:
            self._fault(place, wrong.path, wrong.where, wrong.message)
        text = json.dumps(found.value, ensure_ascii=False)
        if half := _HALF.search(text):
            self._fault(place, (key,), key, f"half a character in it: {half[0]!r}")
        return text

    def _tokens(self, place: Place, ids: Any) -> bytes:
        if not isinstance(ids, list) or not ids:
            message = "empty" if ids == [] else f"expected a list of token ids, got {shown(ids)}"
            self._fault(place, ("input_ids",), "input_ids", message)
            return b""
        if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) <= LARGEST_TOKEN:
            return token_bytes(ids)
        bad = [i for i, token in enumerate(ids) if type(token) is not int or not 0 <= token <= LARGEST_TOKEN]
        more = f" (and {len(bad) - 1} more on this {'row' if place.row else 'line'})" if len(bad) > 1 else ""
        message = f"expected a token id, got {shown(ids[bad[0]])}{more}"
        self._fault(place, ("input_ids", bad[0]), f"input_ids[{bad[0]}]", message)
        return b""

    def _mask(self, place: Place, value: Mapping[str, Any]) -> bytes:
        mask, ids = value["loss_mask"], value.get("input_ids")
        if any(key in value for key in CHATS):
            self._fault(place, ("loss_mask",), "loss_mask", "the chat template makes it of messages; leave it out")
        elif not isinstance(mask, list) or not mask:
            message = "empty" if mask == [] else f"expected a list of 0 and 1, got {shown(mask)}"
            self._fault(place, ("loss_mask",), "loss_mask", message)
        elif bad := [i for i, item in enumerate(mask) if type(item) is not int or item not in (0, 1)]:
            message = f"expected 0 or 1, got {shown(mask[bad[0]])}"
            self._fault(place, ("loss_mask", bad[0]), f"loss_mask[{bad[0]}]", message)
        elif isinstance(ids, list) and len(ids) != len(mask):
            message = f"{len(mask):,} of them for {len(ids):,} input_ids"
            self._fault(place, ("loss_mask",), "loss_mask", message)
        else:
            return bytes(mask)
        return b""

    def _missing(self, place: Place, value: Mapping[str, Any], key: str) -> None:
        close = get_close_matches(key, [k for k in value if k not in ("id", *BODIES)], n=1, cutoff=0.6)
        hint = f"; did you mean {key!r} by {close[0]!r}?" if close else ""
        self._fault(place, (), "", f"{key!r} is missing{hint}")

    def _fault(self, place: Place, path: Sequence[str | int], where: str, message: str) -> None:
        self._count += 1
        self._told(place.fault(path, where, message))


def shown(value: Any) -> str:
    """A value for a message, as JSON has it, shortened."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
