"""One dump against its manifest line."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hsops.core.checksum import matches
from hsops.core.container import Tensor, read_header
from hsops.core.dumps import Sample, token_hash
from hsops.core.errors import BadDataError
from hsops.core.prompts import LARGEST_TOKEN
from hsops.core.values import LAYOUTS, Oddity, look, read_tokens

LAST = "last_hidden_states"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault.

    Args:
        file: name in the folder.
        code: ``missing``, ``size``, ``checksum``, ``container``, ``shape``, ``token-ids``, ``nan``, ``inf``, ``zero``,
            ``unreadable``; of the whole folder also ``manifest``, ``duplicate``, ``stray``, ``part``, ``no-dump``.
        reason: one sentence with the values.
    """

    file: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Size:
    """How long the rows of one slot of one dump are, as L2 norms.

    Args:
        median: over its rows.
        largest: the longest of them.
        token: where that is.
    """

    median: float
    largest: float
    token: int


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found in one dump.

    Args:
        findings: every fault; what depends on a broken part is not looked at.
        sizes: by slot: the manifest's boundaries, then the state before the last norm, then the one after it, as far as
            there are any; empty when there are findings.
    """

    findings: tuple[Finding, ...]
    sizes: tuple[Size, ...] = ()


def check(folder: Path, sample: Sample, tokens: bytes | None) -> Checked:
    """Hold one dump against its manifest line.

    Args:
        folder: where it is.
        sample: its manifest line.
        tokens: what its prompt has, as ``token_bytes``; None when there is nothing to compare with.
    """
    norms: list[npt.NDArray[np.float32]] = []
    try:
        faults = _file(folder / sample.file, sample) or _content(folder / sample.file, sample, tokens, norms)
    except FileNotFoundError:
        faults = [("missing", "the manifest names it, but it is not here")]
    except BadDataError as error:
        faults = [("container", error.message)]
    except OSError as error:
        faults = [("unreadable", f"{error.strerror}")]
    if faults:
        return Checked(tuple(Finding(sample.file, code, reason) for code, reason in faults))
    return Checked((), tuple(_size(column) for held in norms for column in held.T))


def _size(norms: npt.NDArray[np.float32]) -> Size:
    token = int(norms.argmax())
    return Size(float(np.median(norms)), float(norms[token]), token)


def _file(path: Path, sample: Sample) -> list[tuple[str, str]]:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        return [("unreadable", "not a regular file")]
    if found.st_size != sample.bytes:
        return [("size", f"{found.st_size:,} bytes; the manifest says {sample.bytes:,}")]
    if not matches(path, sample.checksum):
        return [("checksum", f"the content has another checksum than {sample.checksum}")]
    return []


def _content(
    path: Path, sample: Sample, tokens: bytes | None, norms: list[npt.NDArray[np.float32]]
) -> list[tuple[str, str]]:
    tensors = read_header(path)
    if wrong := _layout(tensors, sample):
        return wrong
    faults = []
    held = read_tokens(path, tensors["token_ids"])
    if sample.token_hash and token_hash(held) != sample.token_hash:
        faults.append(("token-ids", "not those that the manifest's hash is of"))
    if foreign := _foreign(held):
        faults.append(("token-ids", foreign))
    if tokens is not None and held != tokens:
        faults.append(("token-ids", f"{len(held) // 8} token ids; {_first_difference(held, tokens)}"))
    states = look(path, tensors["hidden_states"])
    faults += [(odd.kind, _describe(odd, sample)) for odd in states.oddities]
    norms.append(states.norms)
    if LAST in tensors:
        last = look(path, tensors[LAST])
        faults += [(odd.kind, _said(odd, "the state after the norm")) for odd in last.oddities]
        norms.append(last.norms)
    return faults


def _layout(tensors: dict[str, Tensor], sample: Sample) -> list[tuple[str, str]]:
    wanted: dict[str, tuple[str, tuple[int, ...]]]
    wanted = {"token_ids": ("I64", (sample.tokens,)), "hidden_states": (sample.dtype, sample.shape)}
    if sample.last_shape is not None or LAST in tensors:  # another writer may add it untold
        wanted[LAST] = (sample.dtype, (sample.tokens, sample.hidden_size))
    faults = []
    for name, (dtype, shape) in wanted.items():
        tensor = tensors.get(name)
        if tensor is None:
            faults.append(("container", f"no tensor {name!r}"))
        elif (tensor.dtype, tensor.shape) != (dtype, shape):
            got = f"{tensor.dtype} {list(tensor.shape)}"
            faults.append(("shape", f"{name} is {got}; the manifest says {dtype} {list(shape)}"))
    if extra := sorted(set(tensors) - set(wanted)):
        faults.append(("container", f"unexpected tensors: {', '.join(extra)}"))
    if not faults and sample.dtype not in LAYOUTS:
        faults.append(("container", f"dtype {sample.dtype} cannot be checked for NaN; known are {', '.join(LAYOUTS)}"))
    return faults


def _foreign(held: bytes) -> str:
    """A model's padding of images is hashes, which are no token ids."""
    ids = np.frombuffer(held, "<i8")
    bad = np.flatnonzero((ids < 0) | (ids > LARGEST_TOKEN))
    return f"{len(bad):,} that no vocabulary has, the first at {bad[0]}: {ids[bad[0]]}" if len(bad) else ""


def _first_difference(held: bytes, wanted: bytes) -> str:
    if len(held) != len(wanted):
        return f"the prompt has {len(wanted) // 8}"
    at = next(i for i in range(0, len(held), 8) if held[i : i + 8] != wanted[i : i + 8])
    got, want = (int.from_bytes(x[at : at + 8], "little", signed=True) for x in (held, wanted))
    return f"the first other one than the prompt's at {at // 8}: {got} for {want}"


def _describe(odd: Oddity, sample: Sample) -> str:
    return _said(odd, ([f"boundary {b}" for b in sample.boundaries] + ["the final state"])[odd.slot])


def _said(odd: Oddity, where: str) -> str:
    what = {"nan": "NaN", "inf": "Inf", "zero": "nothing but zeros"}[odd.kind]
    return f"{what} in {odd.count:,} rows, first at token {odd.token} of {where}"
