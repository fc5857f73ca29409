"""A trainer's format: what it needs, how a row is written, what completes the data set."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hsops.core.container import Tensor, read_header
from hsops.core.dump_check import LAST
from hsops.core.values import blocks, read_tokens
from hsops.export import arrow_file
from hsops.export.arrow_file import ARROW, INFO, STATE, Line, write_stream
from hsops.export.place import COPY, place
from hsops.export.rows import Needs, Row
from hsops.export.target import Target
from hsops.export.torch_file import Entry, write_torch_file

WRITTEN = "written"


class Format(Protocol):
    """One trainer's format."""

    needs: Needs

    def file(self, row: Row) -> str:
        """Where a row goes, below the folder."""

    def key(self, row: Row) -> str:
        """Of everything that the row's file depends on."""

    def size(self, row: Row, *, beside: bool) -> int:
        """About how many bytes the file takes; ``beside``: on the file system that the dump is on."""

    def is_data(self, file: str) -> bool:
        """Whether the trainer takes a file of this name for a sample."""

    def write(self, source: Path, row: Row, part: Path) -> str:
        """Write the file of a dump that was checked; says how."""

    def begin(self, target: Target, rows: Sequence[Row]) -> None:
        """Before the first file is written."""

    def finish(self, target: Target, rows: Sequence[Row]) -> None:
        """After the last one: what makes the files a data set."""


class SpecForge:
    """SpecForge's offline EAGLE-3 features: a torch file a sample; the files alone are the data set.

    Layout: ``scripts/prepare_hidden_states.py`` and ``specforge/algorithms/eagle3/data.py`` of SpecForge 0.2.0.
    """

    needs = Needs("specforge", final="post-norm", boundaries=3, gaps=True)
    group = 2000  # files a folder, as SpecForge's own script has

    def file(self, row: Row) -> str:
        begin = row.number - row.number % self.group
        return f"rows_{begin}-{begin + self.group}/data_{row.number}.ckpt"

    def key(self, row: Row) -> str:
        return f"{row.sample.checksum} {mask_key(row)}"

    def size(self, row: Row, *, beside: bool) -> int:  # noqa: ARG002
        tokens, _, hidden = row.sample.shape
        width = {"F32": 4}.get(row.sample.dtype, 2)
        return 4096 + tokens * (16 + 4 * hidden * width)

    def is_data(self, file: str) -> bool:
        return file.endswith((".ckpt", ".ckpt.gz"))

    def write(self, source: Path, row: Row, part: Path) -> str:
        tensors = read_header(source)
        states, last = tensors["hidden_states"], tensors[LAST]
        tokens, hidden = row.sample.tokens, row.sample.hidden_size
        mask = np.ones(tokens, "<i8") if not row.mask else np.frombuffer(row.mask, "u1").astype("<i8")
        entries = [
            Entry("input_ids", "I64", (tokens,), [read_tokens(source, tensors["token_ids"])]),
            Entry("loss_mask", "I64", (tokens,), [mask.data]),
            Entry("hidden_state", last.dtype, (1, tokens, hidden), _pieces(source, last, 1)),
            Entry("aux_hidden_state", states.dtype, (1, tokens, 3 * hidden), _pieces(source, states, 3)),
        ]
        write_torch_file(part, entries)
        return WRITTEN

    def begin(self, target: Target, rows: Sequence[Row]) -> None:
        """Nothing: every file stands for itself."""

    def finish(self, target: Target, rows: Sequence[Row]) -> None:
        """Nothing."""


class Speculators:
    """speculators' cached hidden states beside its prepared data set; vLLM writes the same safetensors.

    Layout: ``speculators/train/data.py`` of speculators 0.9.0 and ``hs_connectors/transfer.py``. A dump is such a file
    as it is, so that it is linked.

    Args:
        copy: no hard links.
    """

    needs = Needs("speculators", final="pre-norm", boundaries=0, gaps=False)
    _data = re.compile(r"hidden_states/hs_\d+\.safetensors\Z")

    def __init__(self, *, copy: bool) -> None:
        self._copy = copy

    def file(self, row: Row) -> str:
        return f"hidden_states/hs_{row.number}.safetensors"

    def key(self, row: Row) -> str:
        return row.sample.checksum + f" {COPY}" * self._copy

    def size(self, row: Row, *, beside: bool) -> int:
        return 0 if beside and not self._copy else row.sample.bytes

    def is_data(self, file: str) -> bool:
        return bool(self._data.match(file))

    def write(self, source: Path, row: Row, part: Path) -> str:  # noqa: ARG002
        return place(source, part, copy=self._copy)

    def begin(self, target: Target, rows: Sequence[Row]) -> None:
        """No data set while its rows are not what it says."""
        if not target.whole(STATE, data_key(rows)):
            target.remove(STATE)

    def finish(self, target: Target, rows: Sequence[Row]) -> None:
        """Its columns; the file without which nobody reads them is the last one."""
        key = data_key(rows)
        if target.whole(STATE, key):
            return

        def columns(part: Path) -> str:
            with part.open("xb") as file:
                write_stream(file, (self._line(target.path / self.file(row), row) for row in rows))
            return WRITTEN

        target.put(ARROW, columns)
        for file, text in ((INFO, arrow_file.info()), (STATE, arrow_file.state(key[:16]))):
            target.put(file, texts(text))
        target.record(STATE, key)

    def _line(self, path: Path, row: Row) -> Line:
        ids = np.frombuffer(read_tokens(path, read_header(path)["token_ids"]), "<i8").astype(np.int32)
        return Line(ids, np.frombuffer(row.mask or b"\1" * len(ids), "u1").astype(np.int64))


def mask_key(row: Row) -> str:
    """Of a row's mask; ``all`` when every token counts."""
    return hashlib.sha256(row.mask).hexdigest()[:16] if row.mask.count(0) else "all"


def data_key(rows: Sequence[Row]) -> str:
    """Of all that a data set's columns depend on."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(f"{row.number} {row.sample.checksum} {mask_key(row)}\n".encode())
    return digest.hexdigest()


def _pieces(source: Path, states: Tensor, slots: int) -> Iterator[Any]:
    """The first ``slots`` of every row, in pieces of about 8 MiB."""
    for block in blocks(source, states):
        yield np.ascontiguousarray(block[:, :slots]).data


def texts(text: str) -> Callable[[Path], str]:
    """Writes a file of text."""

    def write(part: Path) -> str:
        part.write_text(text, encoding="utf-8")
        return WRITTEN

    return write
