"""Tensors of a safetensors file, or of a model's folder of them, read piece by piece. Standard library only."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

INDEX, SUFFIX = "model.safetensors.index.json", ".safetensors"
LARGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies.

    Args:
        file: path.
        dtype: safetensors' name.
        shape: its sizes.
        start, end: its bytes in the file.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def row_bytes(self) -> int:
        """Of one entry of the first axis."""
        return (self.end - self.start) // self.shape[0]

    def rows(self, first: int, count: int) -> bytearray:
        """The bytes of ``count`` entries of the first axis from ``first`` on; a bytearray, so that it can be written.

        Raises:
            OSError: it cannot be read, or the file is cut.
        """
        data = bytearray(count * self.row_bytes)
        with open(self.file, "rb", buffering=0) as file:
            file.seek(self.start + first * self.row_bytes)
            view = memoryview(data)
            while view:
                read = file.readinto(view)
                if not read:
                    raise OSError(f"{self.file} is cut")
                view = view[read:]
        return data


def tensors_of(path: str) -> dict[str, Tensor]:
    """The tensors of one file.

    Raises:
        OSError, ValueError: it cannot be read, or is no safetensors file.
    """
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LARGEST_HEADER:
            raise ValueError(f"{path} is no safetensors file")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        shape = tuple(int(n) for n in entry["shape"])
        found[name] = Tensor(path, str(entry["dtype"]), shape, 8 + length + begin, 8 + length + end)
        if not math.prod(shape):
            del found[name]  # nothing in it, and no rows to count
    return found


def files_of(folder: str) -> dict[str, str]:
    """By tensor name, the file of a model's folder that holds it; from the index, else from the headers.

    Raises:
        OSError, ValueError: there are none, or they cannot be read.
    """
    index = os.path.join(folder, INDEX)
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            listed = json.load(file)["weight_map"]
        return {name: os.path.join(folder, os.path.basename(shard)) for name, shard in listed.items()}
    shards = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    if not shards:
        raise FileNotFoundError(f"there are no safetensors files in {folder}")
    paths = [os.path.join(folder, shard) for shard in shards]
    return {name: path for path in paths for name in tensors_of(path)}


def folder_of(model: str, environ: Mapping[str, str]) -> str:
    """The folder of a model that is named by its path or, when it is in the hub's cache, by its hub id.

    Args:
        model: as the server was launched with.
        environ: where ``HF_HUB_CACHE`` and ``HF_HOME`` may be set.

    Raises:
        FileNotFoundError: it is not on this disk.
    """
    path = os.path.expanduser(model)
    if os.path.isdir(path):
        return path
    home = environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    repository = os.path.join(os.path.expanduser(cache), "models--" + model.replace("/", "--"))
    with open(os.path.join(repository, "refs", "main"), encoding="utf-8") as file:
        return os.path.join(repository, "snapshots", file.read().strip())
