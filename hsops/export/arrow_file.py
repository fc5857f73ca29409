"""The data set beside the states: what ``datasets.Dataset.save_to_disk`` writes for integer columns, without pyarrow.

One Arrow IPC stream (https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format; the tables' slots are
those of ``format/Message.fbs`` and ``Schema.fbs``), ``dataset_info.json`` and ``state.json``. Tests read it back with
``datasets.load_from_disk``. Why not pyarrow itself: docs/decisions/0009-export.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from hsops.export.flatbuffer import Child, finished, pairs, table, tables, text

ARROW = "data-00000-of-00001.arrow"
INFO = "dataset_info.json"
STATE = "state.json"
_V5, _LITTLE = ("h", 4), ("h", 0)
_SCHEMA, _BATCH = 1, 3  # members of the union MessageHeader
_INT, _LIST = 2, 12  # members of the union Type
_CONTINUES = 0xFFFFFFFF
_MOST_ROWS, _MOST_TOKENS = 1000, 1 << 20  # of a batch: datasets' own, and 12 MiB
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Line:
    """One row: ``input_ids`` int32 and ``loss_mask`` int64, both [T]; its ``seq_len`` is T."""

    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.int64]


def write_stream(file: BinaryIO, lines: Iterable[Line]) -> None:
    """Write the Arrow stream; one batch of rows is in memory."""
    schema = tables([_list_field("input_ids", 32), _list_field("loss_mask", 64), _int_field("seq_len", 64)])
    _message(file, _SCHEMA, table({0: _LITTLE, 1: schema}), [])
    for batch in _batches(lines):
        _write_batch(file, batch)
    file.write(struct.pack("<II", _CONTINUES, 0))


def info() -> str:
    """``dataset_info.json``: the columns."""
    columns = {"input_ids": _listed("int32"), "loss_mask": _listed("int64"), "seq_len": _value("int64")}
    return json.dumps({"citation": "", "description": "", "features": columns, "homepage": "", "license": ""}, indent=2)


def state(fingerprint: str) -> str:
    """``state.json``: the files, and that rows are read as torch tensors, which speculators relies on."""
    return json.dumps(
        {
            "_data_files": [{"filename": ARROW}],
            "_fingerprint": fingerprint,
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": "torch",
            "_output_all_columns": False,
            "_split": None,
        },
        indent=2,
    )


def _value(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "_type": "Value"}


def _listed(dtype: str) -> dict[str, Any]:
    return {"feature": _value(dtype), "_type": "List"}


def _int_field(name: str, bits: int) -> Child:
    kind = table({0: ("i", bits), 1: ("?", 1)})
    return table({0: text(name), 1: ("?", 1), 2: ("b", _INT), 3: kind, 5: tables([])})


def _list_field(name: str, bits: int) -> Child:
    return table({0: text(name), 1: ("?", 1), 2: ("b", _LIST), 3: table({}), 5: tables([_int_field("item", bits)])})


def _batches(lines: Iterable[Line]) -> Iterator[list[Line]]:
    batch, tokens = list[Line](), 0
    for line in lines:
        if batch and (len(batch) == _MOST_ROWS or tokens + len(line.input_ids) > _MOST_TOKENS):
            yield batch
            batch, tokens = [], 0
        batch.append(line)
        tokens += len(line.input_ids)
    if batch:
        yield batch


def _write_batch(file: BinaryIO, batch: list[Line]) -> None:
    lengths = np.array([len(line.input_ids) for line in batch], "<i8")
    ends = np.zeros(len(batch) + 1, "<i4")
    np.cumsum(lengths, out=ends[1:])
    ids = np.concatenate([line.input_ids for line in batch]).astype("<i4", copy=False)
    masks = np.concatenate([line.loss_mask for line in batch]).astype("<i8", copy=False)
    absent = np.empty(0, "<i8")  # no validity bits: nothing is null
    body = [absent, ends, absent, ids, absent, ends, absent, masks, absent, lengths]
    rows, tokens = (len(batch), 0), (len(ids), 0)
    places, at = list[tuple[int, int]](), 0
    for part in body:
        places.append((at, part.nbytes))
        at += part.nbytes + -part.nbytes % _ALIGNMENT
    nodes = pairs([rows, tokens, rows, tokens, rows])
    header = table({0: ("q", len(batch)), 1: nodes, 2: pairs(places)})
    _message(file, _BATCH, header, body)


def _message(file: BinaryIO, kind: int, header: Child, body: list[npt.NDArray[Any]]) -> None:
    length = sum(part.nbytes + -part.nbytes % _ALIGNMENT for part in body)
    data = finished(table({0: _V5, 1: ("b", kind), 2: header, 3: ("q", length)}))
    file.write(struct.pack("<II", _CONTINUES, len(data)) + data)
    for part in body:
        file.write(part.data)
        file.write(bytes(-part.nbytes % _ALIGNMENT))
