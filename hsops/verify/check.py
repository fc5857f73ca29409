"""One dump against its manifest line."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from hsops.core.checksum import matches
from hsops.core.dumps import Sample, token_hash
from hsops.core.errors import BadDataError
from hsops.verify.container import Tensor, read_header
from hsops.verify.values import LAYOUTS, Oddity, oddities, read_tokens

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


def check(folder: Path, sample: Sample, tokens: bytes | None) -> list[Finding]:
    """Every fault of one dump; what depends on a broken part is not looked at.

    Args:
        folder: where it is.
        sample: its manifest line.
        tokens: what its prompt has, as ``token_bytes``; None when there is nothing to compare with.
    """

    try:
        faults = _file(folder / sample.file, sample) or _content(folder / sample.file, sample, tokens)
    except FileNotFoundError:
        faults = [("missing", "the manifest names it, but it is not here")]
    except BadDataError as error:
        faults = [("container", error.message)]
    except OSError as error:
        faults = [("unreadable", f"{error.strerror}")]
    return [Finding(sample.file, code, reason) for code, reason in faults]


def _file(path: Path, sample: Sample) -> list[tuple[str, str]]:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        return [("unreadable", "not a regular file")]
    if found.st_size != sample.bytes:
        return [("size", f"{found.st_size:,} bytes; the manifest says {sample.bytes:,}")]
    if not matches(path, sample.checksum):
        return [("checksum", f"the content has another checksum than {sample.checksum}")]
    return []


def _content(path: Path, sample: Sample, tokens: bytes | None) -> list[tuple[str, str]]:
    tensors = read_header(path)
    if wrong := _layout(tensors, sample):
        return wrong
    faults = []
    held = read_tokens(path, tensors["token_ids"])
    if sample.token_hash and token_hash(held) != sample.token_hash:
        faults.append(("token-ids", "not those that the manifest's hash is of"))
    if tokens is not None and held != tokens:
        faults.append(("token-ids", f"{len(held) // 8} token ids; {_first_difference(held, tokens)}"))
    faults += [(odd.kind, _describe(odd, sample)) for odd in oddities(path, tensors["hidden_states"])]
    if LAST in tensors:
        faults += [(odd.kind, _said(odd, "the state after the norm")) for odd in oddities(path, tensors[LAST])]
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
