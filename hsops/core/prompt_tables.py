"""Datasets on disk: what ``datasets`` saves, and the parquet files of the Hub. pyarrow's one door."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from hsops.core.errors import ConfigError, Fault, HsopsError

ROWS = 64  # held as Python values at once
END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream; datasets writes it last
_STATE, _SPLITS = "state.json", "dataset_dict.json"
_SHARD = re.compile(r"(?P<name>.*?)-(?P<number>\d{5})-of-(?P<total>\d{5})(?:-[0-9a-f]{16})?\.parquet")
_INDICES = ("_indices_data_files", "_indices_files")


@dataclass(frozen=True, slots=True)
class Table:
    """A dataset that can be read.

    Args:
        path: as the user named it.
        files: its parts in order, all parquet or all Arrow.
        columns: names, of the first file.
    """

    path: Path
    files: tuple[Path, ...]
    columns: tuple[str, ...]

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]] | Fault]:
        """Each row's number and its values in these columns; a fault ends them."""
        number, file = 0, self.path
        try:
            for file in self.files:
                with _opened(file) as (names, batches):
                    if lacking := [name for name in columns if name not in names]:
                        yield Fault(str(file), 0, 0, "", f"no column {lacking[0]!r}; the files before have one")
                        return
                    for batch in batches(list(columns)):
                        cells = {name: _values(batch.column(name)) for name in columns}
                        for i in range(batch.num_rows):
                            yield number, {name: column[i] for name, column in cells.items()}
                            number += 1
        except _errors() as error:
            yield Fault(str(file), 0, 0, f"after row {number - 1}" if number else "", f"damaged: {_first(error)}")


def open_table(path: Path) -> Table:
    """The dataset at ``path``: a folder, a file, or ``FOLDER/SPLIT`` for the files of a split in a folder.

    Raises:
        ConfigError: it is none, or not a whole one, or one with several splits.
        HsopsError: pyarrow is not installed.
        FileNotFoundError: there is nothing.
    """
    files = _files(path)
    _arrow(path)
    try:
        with _opened(files[0]) as (names, _):
            return Table(path, files, tuple(names))
    except _errors() as error:
        raise _no(files[0], f"damaged: {_first(error)}") from None


def _files(path: Path) -> tuple[Path, ...]:
    if path.is_file():
        return (path,)
    if not path.is_dir():
        return _one_split(path, found) if (found := split_files(path)) else _missing(path)
    if (path / _SPLITS).is_file():
        splits = _json(path / _SPLITS).get("splits")
        named = [name for name in splits if isinstance(name, str)] if isinstance(splits, list) else []
        raise _which(path, named)
    if (path / _STATE).is_file():
        return _saved(path)
    found = sorted(file for file in path.rglob("*.parquet") if not _hidden(path, file))
    if not found:
        raise _no(path, f"a folder without {_STATE} (of save_to_disk) and without parquet files")
    splits = {_split(path, file) for file in found}
    if len(splits) > 1:
        raise _which(path, sorted(splits))
    return _one_split(path, found)


def _missing(path: Path) -> tuple[Path, ...]:
    raise FileNotFoundError(path)


def _which(path: Path, splits: list[str]) -> ConfigError:
    names = ", ".join(splits) or "none"
    fix = f"name the one that is meant: {path / splits[0]}" if splits else ""
    return ConfigError([Fault(str(path), 0, 0, "", f"a dataset of several splits: {names}")], fix=fix)


def _no(path: Path, message: str, fix: str = "") -> ConfigError:
    return ConfigError([Fault(str(path), 0, 0, "", message)], fix=fix)


def _saved(path: Path) -> tuple[Path, ...]:
    """The shards of a folder of ``save_to_disk``."""
    state = _json(path / _STATE)
    if any(state.get(key) for key in _INDICES):
        raise _no(
            path,
            "an old dataset with a file of indices beside its rows: which rows count, and in which order, is in there",
            fix="datasets.load_from_disk(OLD).flatten_indices().save_to_disk(NEW), with the datasets that wrote it",
        )
    listed = state.get("_data_files")
    names = [str(one.get("filename")) for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    if not names or any(Path(name).name != name for name in names):
        raise _no(path / _STATE, "its _data_files name no files of this folder")
    files = tuple(path / name for name in names)
    if lost := [file.name for file in files if not file.is_file()]:
        raise _no(path, f"{_STATE} names {len(files)} files, {len(lost)} are not there: {lost[0]}")
    return files


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _no(path, f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise _no(path, "expected an object")
    return found


def _hidden(folder: Path, file: Path) -> bool:
    """The Hub's client keeps a cache in ``.cache`` of what it downloads."""
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _split(folder: Path, file: Path) -> str:
    """``data/train`` of ``data/train-00000-of-00002.parquet``; of ``train/0000.parquet`` it is ``train``."""
    shard = _SHARD.fullmatch(file.name)
    stem = shard["name"] if shard else file.stem
    inner = file.parent.relative_to(folder)
    return str(inner) if stem.isdigit() else str(inner / stem)


def split_files(path: Path) -> list[Path]:
    """The parquet files of split ``path.name`` in the folder that it would lie in; needs no pyarrow."""
    folder = path.parent
    found = sorted(folder.glob("*.parquet")) if folder.is_dir() else []
    return [file for file in found if _split(folder, file) == path.name]


def _one_split(path: Path, files: list[Path]) -> tuple[Path, ...]:
    """Its files, if they are all there."""
    shards = [shard for file in files if (shard := _SHARD.fullmatch(file.name))]
    total = {int(shard["total"]) for shard in shards}
    numbers = sorted(int(shard["number"]) for shard in shards)
    if shards and (len(shards) < len(files) or total != {len(shards)} or numbers != list(range(len(shards)))):
        raise _no(path, f"{len(files)} parquet files; by their names there are {max(total)}, from 00000 on")
    return tuple(files)


def _arrow(path: Path) -> Any:
    """The library, with its parts."""
    try:
        for part in ("compute", "ipc", "parquet"):
            import_module(f"pyarrow.{part}")
        return import_module("pyarrow")
    except ImportError:
        raise HsopsError(
            f"{path} is a dataset, and pyarrow is not installed",
            why="hsops needs it for datasets alone",
            fix="pip install 'hsops[datasets]', or give the prompts as JSONL",
        ) from None


def _errors() -> tuple[type[Exception], ...]:
    return (_arrow(Path()).ArrowException, OSError, UnicodeDecodeError)


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Any]]:
    """The names of a file's columns, and a function from names to batches of rows in these columns."""
    arrow = _arrow(path)
    with path.open("rb") as file:
        head = file.read(4)
        size = file.seek(0, 2)
        file.seek(max(0, size - len(END)))
        tail = file.read()
    if head == b"PAR1":
        with arrow.parquet.ParquetFile(str(path), memory_map=True) as found:
            yield (
                found.schema_arrow.names,
                lambda names: _cut(found.iter_batches(ROWS, columns=names, use_threads=False)),
            )
        return
    with arrow.memory_map(str(path)) as mapped:
        if head == b"ARRO":
            whole = arrow.ipc.open_file(mapped)
            yield whole.schema.names, lambda _: _cut(whole.get_batch(i) for i in range(whole.num_record_batches))
            return
        stream = arrow.ipc.open_stream(mapped)
        if tail != END:
            raise OSError("it is cut short: an Arrow stream ends with eight bytes that are not there")
        yield stream.schema.names, lambda _: _cut(stream)


def _cut(batches: Any) -> Iterator[Any]:
    """Checked batches, cut into small ones: a check of the offsets, as a lie in them is a crash."""
    for batch in batches:
        batch.validate(full=True)
        for start in range(0, batch.num_rows, ROWS):
            yield batch.slice(start, ROWS)


def _values(column: Any) -> list[Any]:
    """A column's values; lists of integers without the detour of an object each."""
    arrow = _arrow(Path())
    kinds = arrow.types
    is_list = kinds.is_list(column.type) or kinds.is_large_list(column.type) or kinds.is_fixed_size_list(column.type)
    if is_list and kinds.is_integer(column.type.value_type) and not column.null_count:
        flat = column.flatten()
        if not flat.null_count:
            ends = accumulate(arrow.compute.list_value_length(column).to_pylist(), initial=0)
            numbers = flat.to_numpy(zero_copy_only=False)
            return [numbers[start:end].tolist() for start, end in pairwise(ends)]
    found: list[Any] = column.to_pylist()
    return found
