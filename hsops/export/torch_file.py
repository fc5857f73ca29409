"""What ``torch.save`` writes for a dict of tensors, without torch: a stored zip of one pickle and the raw storages.

Why not torch itself: docs/decisions/0009-export.md. Format: ``caffe2/serialize/inline_container.h`` of PyTorch (the
comment at its top), ``torch/serialization.py`` (``_save``). Tests read every file back with
``torch.load(weights_only=True)``, with and without ``mmap``.
"""

from __future__ import annotations

import math
import pickle
import struct
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsops.core.container import ITEM_BYTES

STORAGES = {"BF16": "BFloat16Storage", "F16": "HalfStorage", "F32": "FloatStorage", "I64": "LongStorage"}
_ROOT = "archive"  # any name does: readers take that of the first entry
_ALIGNMENT = 64  # bytes; torch's own, so that a mapped file gives aligned tensors
_ZIP64_EXTRA = 20  # bytes that zipfile adds to the local header of an entry that may be large
_SMALL = 1 << 31


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the dict.

    Args:
        key: in the dict.
        dtype: safetensors' name, one of ``STORAGES``.
        shape: contiguous.
        blocks: its bytes, little-endian, piece by piece; iterated once.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    blocks: Iterable[Any]

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size of the storage."""
        return self.count * ITEM_BYTES[self.dtype]


def write_torch_file(path: Path, entries: Sequence[Entry]) -> None:
    """Write the file; at no time is more than one block of an entry in memory.

    Raises:
        ValueError: an entry's blocks are not as many bytes as its shape says.
        OSError: it cannot be written.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        _add(archive, "data.pkl", [_pickled(entries)])
        _add(archive, "byteorder", [b"little"])
        for number, entry in enumerate(entries):
            written = _add(archive, f"data/{number}", entry.blocks, size=entry.bytes)
            if written != entry.bytes:
                raise ValueError(f"{entry.key}: {written:,} bytes for shape {list(entry.shape)}")
        _add(archive, "version", [b"3\n"])


def _add(archive: zipfile.ZipFile, name: str, blocks: Iterable[Any], size: int = 0) -> int:
    """One entry, its content at a multiple of 64 bytes; returns its size."""
    info = zipfile.ZipInfo(f"{_ROOT}/{name}")
    large = size >= _SMALL
    assert archive.fp is not None
    begin = archive.fp.tell() + zipfile.sizeFileHeader + len(info.filename) + 4 + _ZIP64_EXTRA * large  # type: ignore[attr-defined]
    padding = -begin % _ALIGNMENT
    info.extra = struct.pack("<HH", 0x4246, padding) + b"Z" * padding  # "FB": what torch pads with
    written = 0
    with archive.open(info, "w", force_zip64=large) as file:
        for block in blocks:
            written += file.write(block)
    return written


def _pickled(entries: Sequence[Entry]) -> bytes:
    """The dict, each storage a persistent id: what ``torch.load`` asks its zip for."""
    items = b"".join(_text(entry.key) + _tensor(number, entry) for number, entry in enumerate(entries))
    return pickle.PROTO + b"\x02" + pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS + pickle.STOP


def _tensor(number: int, entry: Entry) -> bytes:
    """``torch._utils._rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, backward_hooks)``."""
    kind = _global("torch", STORAGES[entry.dtype])
    storage = _tuple(_text("storage"), kind, _text(str(number)), _text("cpu"), _int(entry.count)) + pickle.BINPERSID
    strides = [math.prod(entry.shape[place + 1 :]) for place in range(len(entry.shape))]
    hooks = _global("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    shape, steps = (_tuple(*map(_int, numbers)) for numbers in (entry.shape, strides))
    arguments = _tuple(storage, _int(0), shape, steps, pickle.NEWFALSE, hooks)
    return _global("torch._utils", "_rebuild_tensor_v2") + arguments + pickle.REDUCE


def _tuple(*items: bytes) -> bytes:
    return pickle.MARK + b"".join(items) + pickle.TUPLE


def _global(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    data = text.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(data)) + data


def _int(number: int) -> bytes:
    if number < _SMALL:
        return pickle.BININT + struct.pack("<i", number)
    data = pickle.encode_long(number)
    return pickle.LONG1 + bytes([len(data)]) + data
