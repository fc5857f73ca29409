"""The dump directory: one safetensors file a sample and an append-only manifest.

Layout of ``<host.dumps>/<server>/`` (written by ``hsops_hs_dump`` inside SGLang's rank 0):
``manifest.jsonl``, ``<sample id>.safetensors``, ``hello/<run id>.<pid>.json``; ``*.part`` is unfinished. ``check/``
is no part of the data set: ``rank<N>/`` in it is a dump folder of rank N, for requests whose id starts with
``hscheck-``.

A dump holds ``token_ids [T] int64`` and ``hidden_states [T, K(+1), H]``: the K boundaries in ascending order, then the
state after the last layer before the norm when ``final`` is ``pre-norm`` or ``both`` (the layout of speculators and
vLLM). With ``post-norm`` or ``both`` it also holds ``last_hidden_states [T, H]``, the state after the norm, which is
what SpecForge learns from.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Any

from hsops.core.errors import BadDataError

RID_PREFIX = "hs-"
CHECK_PREFIX = "hscheck-"
CHECK_FOLDER = "check"  # in the dump directory: what `hsops verify --live` asks for, one folder a rank
MANIFEST = "manifest.jsonl"
SUFFIX = ".safetensors"
SAMPLE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,159}\Z")  # \Z: "$" would let a trailing newline through
CHECKSUM = re.compile(r"(xxh3:[0-9a-f]{16}|crc32:[0-9a-f]{8})\Z")
FINAL_STATES = {"none": 0, "pre-norm": 1, "post-norm": 1, "both": 2}  # how many states of a row each adds
MOST = 2**53  # of any count in the manifest: what JSON carries exactly everywhere
ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the manifest: a finished dump, or a sample that failed with its reason.

    Args:
        id: the prompt's id; the file is ``<id>.safetensors``.
        status: ``ok`` or ``failed``.
        tokens: T.
        boundaries: the captured boundaries, ascending.
        final: ``pre-norm``, ``post-norm``, ``both`` or ``none``.
        dtype: safetensors' name of the states' dtype (``F32``, ``BF16`` ...).
        hidden_size: H.
        bytes: size of the file.
        checksum: ``xxh3:<16 hex>`` (XXH3-64) or ``crc32:<8 hex>`` of the whole file.
        reason: why it failed; empty when ok.
        run: id of the run that wrote it.
        patch: identity of the capture patch.
        sglang: SGLang's version.
        token_hash: ``token_hash()`` of the captured token ids; empty when the writer gave none.
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
    token_hash: str = ""

    @property
    def ok(self) -> bool:
        """There is a dump."""
        return self.status == "ok"

    @property
    def file(self) -> str:
        """The dump's file name."""
        return self.id + SUFFIX

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of ``hidden_states``: [T, K or K+1, H]."""
        return self.tokens, len(self.boundaries) + (self.final in ("pre-norm", "both")), self.hidden_size

    @property
    def last_shape(self) -> tuple[int, int] | None:
        """Shape of ``last_hidden_states``: [T, H]; None when there is no such tensor."""
        return (self.tokens, self.hidden_size) if self.final in ("post-norm", "both") else None


_TYPES: dict[str, type] = {
    **dict.fromkeys(("id", "status", "final", "dtype", "checksum", "reason", "run", "patch", "sglang"), str),
    **dict.fromkeys(("tokens", "hidden_size", "bytes"), int),
}
_SIZES = ("tokens", "hidden_size", "bytes")
# Manifests have 100,000 lines and more: all fields of one are taken, and their types compared, at once.
_FIELDS = tuple(field.name for field in fields(Sample) if field.name != "token_hash")
_fields_of = itemgetter(*_FIELDS)
_KINDS = (*(list if name == "boundaries" else _TYPES[name] for name in _FIELDS), str)
_decode = json.JSONDecoder().raw_decode


def parse_sample(line: str) -> Sample:
    """One manifest line. Keys it does not know are left alone, so that a newer writer can be read.

    Raises:
        BadDataError: it is not JSON, a field is missing or of another type, or the id is no safe file name.
    """
    raw = _object(line)
    try:
        values: list[Any] = [*_fields_of(raw), raw.get("token_hash", "")]
    except KeyError:
        values = []
    if tuple(map(type, values)) != _KINDS or not {int}.issuperset(map(type, values[3])):
        raise _misfit(raw)
    values[3] = tuple(values[3])
    sample = Sample(*values)
    _check(sample)
    return sample


def latest(samples: Iterable[Sample]) -> dict[str, Sample]:
    """By id; a later line replaces an earlier one (a retried sample), except that ``failed`` never replaces ``ok``."""
    found: dict[str, Sample] = {}
    for sample in samples:
        held = found.get(sample.id)
        if held is None or sample.ok or not held.ok:
            found[sample.id] = sample
    return found


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids as the dump stores them: little-endian int64.

    Raises:
        OverflowError: an id does not fit.
    """
    held = array("q", token_ids)
    if sys.byteorder == "big":
        held.byteswap()
    return held.tobytes()


def token_hash(tokens: bytes) -> str:
    """``sha256:<16 hex>`` of ``token_bytes``: tells whether a dump is of this very prompt without reading the dump."""
    return f"sha256:{hashlib.sha256(tokens).hexdigest()[:16]}"


def _object(line: str) -> dict[str, Any]:
    try:
        try:
            raw, end = _decode(line)
        except ValueError:  # a blank in front of it, or no JSON
            end = -1
        if end != len(line):
            raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadDataError(f"not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise BadDataError(f"expected an object, got {type(raw).__name__}")
    return raw


def _misfit(raw: dict[str, Any]) -> BadDataError:
    """Which field is missing or of another type."""
    for key, kind in _TYPES.items():
        if type(raw.get(key)) is not kind:
            return BadDataError(f"{key}: expected {kind.__name__}, got {_shown(raw.get(key))}")
    boundaries = raw.get("boundaries")
    if not isinstance(boundaries, list) or not {int}.issuperset(map(type, boundaries)):
        return BadDataError(f"boundaries: expected a list of integers, got {_shown(boundaries)}")
    return BadDataError(f"token_hash: expected str, got {_shown(raw['token_hash'])}")


def _shown(value: Any) -> str:
    """A value from the host for a message, which must stay one."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _check(sample: Sample) -> None:
    if not SAMPLE_ID.match(sample.id):
        raise BadDataError(f"id {_shown(sample.id)} is not a safe file name")
    if sample.status not in ("ok", "failed"):
        raise BadDataError(f"status: expected 'ok' or 'failed', got {_shown(sample.status)}")
    if sample.final not in FINAL_STATES:
        raise BadDataError(f"final: expected one of {', '.join(FINAL_STATES)}, got {_shown(sample.final)}")
    if sample.ok and not CHECKSUM.match(sample.checksum):
        raise BadDataError(f"checksum {_shown(sample.checksum)} is neither xxh3:<16 hex> nor crc32:<8 hex>")
    sizes = sample.tokens, sample.hidden_size, sample.bytes
    least, most = min(sizes), max(sizes)
    if least < 0 or most > MOST:
        key, count = next(one for one in zip(_SIZES, sizes, strict=True) if not 0 <= one[1] <= MOST)
        raise BadDataError(f"{key}: {_shown(count)} is no size that a dump can have")
    if sample.ok and least < 1:
        raise BadDataError(
            f"an ok sample of {sample.tokens} tokens, hidden size {sample.hidden_size}, {sample.bytes} bytes"
        )
