"""Writes dump folders as the capture package does, for tests that need no server."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import xxhash

from hsops.core.dumps import MANIFEST, Sample, token_bytes, token_hash

Tensor = tuple[str, tuple[int, ...], bytes]


def make(
    folder: Path,
    id: str,  # noqa: A002 - the manifest's own word
    tokens: Sequence[int],
    *,
    boundaries: tuple[int, ...] = (1, 3),
    final: str = "pre-norm",
    dtype: str = "F32",
    hidden_size: int = 8,
    checksum: str = "xxh3",
    seed: int = 0,
    states: np.ndarray | None = None,
    last: np.ndarray | None = None,
) -> Sample:
    """Write one dump and its manifest line; returns what the line says."""
    slots = len(boundaries) + (final in ("pre-norm", "both"))
    shape = (len(tokens), slots, hidden_size)
    if states is None:
        states = np.random.default_rng([seed, *id.encode()]).standard_normal(shape, dtype=np.float32)
    tensors: dict[str, Tensor] = {"hidden_states": (dtype, shape, as_dtype(states, dtype))}
    if final in ("post-norm", "both"):
        after = states[:, -1] + 1 if last is None else last
        tensors["last_hidden_states"] = (dtype, (len(tokens), hidden_size), as_dtype(after, dtype))
    tensors["token_ids"] = ("I64", (len(tokens),), token_bytes(tokens))
    data = container(tensors)
    sample = Sample(
        id=id,
        status="ok",
        tokens=len(tokens),
        boundaries=boundaries,
        final=final,
        dtype=dtype,
        hidden_size=hidden_size,
        bytes=len(data),
        checksum=checksum_of(data, checksum),
        reason="",
        run="1129-174200-abcd",
        patch="3f9c2a",
        sglang="0.5.9",
        token_hash=token_hash(token_bytes(tokens)),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / sample.file).write_bytes(data)
    add_line(folder, sample)
    return sample


def container(tensors: dict[str, Tensor]) -> bytes:
    """A safetensors file, written out by hand so that tests can also write wrong ones."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values())


def make_big(folder: Path, id: str, size: int, *, seed: int = 0) -> Sample:  # noqa: A002
    """A dump of about ``size`` bytes, for transfers."""
    hidden = 1024
    tokens = max(1, size // (hidden * 3 * 2))
    return make(folder, id, range(1, tokens + 1), dtype="BF16", hidden_size=hidden, seed=seed)


def fail(folder: Path, id: str, reason: str) -> Sample:  # noqa: A002
    """Write the manifest line of a sample that failed."""
    template = Sample(
        id, "failed", 0, (1, 3), "pre-norm", "F32", 8, 0, "", reason, "1129-174200-abcd", "3f9c2a", "0.5.9"
    )
    folder.mkdir(parents=True, exist_ok=True)
    add_line(folder, template)
    return template


def add_line(folder: Path, sample: Sample) -> None:
    """Append one manifest line."""
    with (folder / MANIFEST).open("a") as file:
        file.write(json.dumps(asdict(sample)) + "\n")


def rewrite(folder: Path, *samples: Sample, **changes: object) -> None:
    """A manifest of exactly these samples, each with ``changes``."""
    lines = [json.dumps(asdict(replace(s, **changes))) for s in samples]  # type: ignore[arg-type]
    (folder / MANIFEST).write_text("".join(line + "\n" for line in lines))


def checksum_of(data: bytes, kind: str = "xxh3") -> str:
    """The checksum of a file's bytes as the manifest has it."""
    return f"xxh3:{xxhash.xxh3_64_hexdigest(data)}" if kind == "xxh3" else f"crc32:{zlib.crc32(data):08x}"


def as_dtype(states: np.ndarray, dtype: str) -> bytes:
    """Float32 values as raw little-endian bytes of ``dtype`` (bf16 by dropping the low half)."""
    if dtype == "BF16":
        return (states.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return states.astype("<f4" if dtype == "F32" else "<f2").tobytes()
