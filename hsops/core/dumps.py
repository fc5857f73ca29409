"""The dump directory: one safetensors file a sample and an append-only manifest.

Layout of ``<host.dumps>/<server>/`` (written by ``hsops_hs_dump`` inside SGLang's rank 0):
``manifest.jsonl``, ``<sample id>.safetensors``, ``hello/<run id>.tp<rank>.json``; ``*.part`` is unfinished.

A dump holds ``token_ids [T] int64`` and ``hidden_states [T, K(+1), H]``: the K boundaries in ascending order, then the
state after the last layer before the norm when ``final`` is ``pre-norm`` (the layout of speculators and vLLM).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hsops.core.errors import BadDataError

RID_PREFIX = "hs-"
MANIFEST = "manifest.jsonl"
SUFFIX = ".safetensors"
SAMPLE_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,159}$")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the manifest: a finished dump, or a sample that failed with its reason.

    Args:
        id: the prompt's id; the file is ``<id>.safetensors``.
        status: ``ok`` or ``failed``.
        tokens: T.
        boundaries: the captured boundaries, ascending.
        final: ``pre-norm`` or ``none``.
        dtype: safetensors' name of the states' dtype (``F32``, ``BF16`` ...).
        hidden_size: H.
        bytes: size of the file.
        checksum: ``xxh3:<16 hex>`` (XXH3-64) or ``crc32:<8 hex>`` of the whole file.
        reason: why it failed; empty when ok.
        run: id of the run that wrote it.
        patch: identity of the capture patch.
        sglang: SGLang's version.
    """

    id: str
    status: str
    tokens: int
    boundaries: tuple[int, ...]
    final: str
    dtype: str
    hidden_size: int
    bytes: int
    checksum: str
    reason: str
    run: str
    patch: str
    sglang: str

    @property
    def file(self) -> str:
        """The dump's file name."""
        return self.id + SUFFIX

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of ``hidden_states``: [T, K or K+1, H]."""
        return self.tokens, len(self.boundaries) + (self.final != "none"), self.hidden_size


_TYPES: dict[str, type] = {
    **dict.fromkeys(("id", "status", "final", "dtype", "checksum", "reason", "run", "patch", "sglang"), str),
    **dict.fromkeys(("tokens", "hidden_size", "bytes"), int),
}


def parse_sample(line: str) -> Sample:
    """One manifest line.

    Raises:
        BadDataError: it is not JSON, a field is missing or of another type, or the id is no safe file name.
    """
    try:
        raw: Any = json.loads(line)
    except ValueError as error:
        raise BadDataError(f"not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise BadDataError(f"expected an object, got {type(raw).__name__}")
    for key, kind in _TYPES.items():
        if type(raw.get(key)) is not kind:
            raise BadDataError(f"{key}: expected {kind.__name__}, got {raw.get(key)!r}")
    boundaries = raw.get("boundaries")
    if not isinstance(boundaries, list) or not all(type(b) is int for b in boundaries):
        raise BadDataError(f"boundaries: expected a list of integers, got {boundaries!r}")
    if not SAMPLE_ID.match(raw["id"]):
        raise BadDataError(f"id {raw['id']!r} is not a safe file name")
    return Sample(boundaries=tuple(boundaries), **{key: raw[key] for key in _TYPES})


def latest(samples: Iterable[Sample]) -> dict[str, Sample]:
    """By id; a later line replaces an earlier one (a retried sample), except that ``failed`` never replaces ``ok``."""
    found: dict[str, Sample] = {}
    for sample in samples:
        held = found.get(sample.id)
        if held is None or sample.status == "ok" or held.status != "ok":
            found[sample.id] = sample
    return found
