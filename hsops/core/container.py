"""The header of a safetensors file, read strictly: no holes, no overlap, no double names, nothing after the end.

Format: https://github.com/huggingface/safetensors#format. Written out here, and held to the safetensors library in
tests, because the library gives no offsets, and bf16 has no numpy dtype that it could return.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsops.core.errors import BadDataError

LARGEST_HEADER = 100_000_000  # the library's own limit
ITEM_BYTES = {"I64": 8, "I32": 4, "U64": 8, "F64": 8, "F32": 4, "BF16": 2, "F16": 2}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: dtype by safetensors' name, shape, and where its bytes start in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Raises:
        BadDataError: it is no safetensors file, or not a strict one.
        OSError: it cannot be read.
    """
    text, data_bytes = _read(path)
    return parse_header(text, data_bytes)


def read_metadata(path: Path) -> dict[str, str]:
    """What a file says of itself, text by text; empty when it says nothing, or nothing that can be read.

    Raises:
        BadDataError: it is no safetensors file.
        OSError: it cannot be read.
    """
    try:
        found = json.loads(_read(path)[0]).get("__metadata__")
    except (ValueError, RecursionError, AttributeError):
        return {}
    return {str(k): v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}


def _read(path: Path) -> tuple[bytes, int]:
    with path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(LARGEST_HEADER, size - 8):
            raise BadDataError("no safetensors header")
        return file.read(length), size - 8 - length


def parse_header(text: bytes, data_bytes: int) -> dict[str, Tensor]:
    """The tensors that a header describes.

    Args:
        text: the JSON.
        data_bytes: what follows it in the file.

    Raises:
        BadDataError: it does not describe exactly those bytes.
    """
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_no_double) if text[:1] == b"{" else None
    except (ValueError, RecursionError) as error:
        raise BadDataError(f"the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise BadDataError("the header is not a JSON object")
    header.pop("__metadata__", None)
    tensors, at = {}, 0
    spans = sorted((_span(name, entry), name) for name, entry in header.items())
    for (begin, end), name in spans:
        tensor = _tensor(name, header[name], 8 + len(text) + begin)
        if begin != at or end - begin != tensor.count * ITEM_BYTES[tensor.dtype]:
            raise BadDataError(f"{name}: bytes {begin} to {end} do not fit {tensor.dtype} {list(tensor.shape)} at {at}")
        tensors[name], at = tensor, end
    if at != data_bytes:
        raise BadDataError(f"the tensors have {at} bytes, the file has {data_bytes}")
    return tensors


def _tensor(name: str, entry: dict[str, Any], start: int) -> Tensor:
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise BadDataError(f"{name}: dtype {dtype!r} is none that dumps have")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise BadDataError(f"{name}: shape {shape!r} is not a list of sizes")
    return Tensor(dtype, tuple(shape), start)


def _span(name: str, entry: Any) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int and n >= 0 for n in offsets):
        raise BadDataError(f"{name}: data_offsets {offsets!r} are not two positions")
    return offsets[0], offsets[1]


def _no_double(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) < len(items):
        raise BadDataError("the header names a tensor twice")
    return found
