"""The Python API: what a script or a notebook wants of hsops. ``from hsops import ...`` gives the same names.

Few and stable; whatever else is in the package may change with any release. Everything that fails raises ``HsopsError``
with ``message``, ``host``, ``why`` and ``fix``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hsops.core.container import Tensor, read_header
from hsops.core.dump_check import LAST
from hsops.core.dumps import Sample, latest
from hsops.core.errors import BadDataError, HsopsError
from hsops.core.events import Event, ignore
from hsops.core.inventory import HostSpec, Inventory
from hsops.core.inventory_file import load
from hsops.core.manifest import read_manifest
from hsops.core.prompt_files import read_prompts
from hsops.core.runs import Run
from hsops.core.values import blocks, read_tokens
from hsops.diagnose.verdict import Verdict
from hsops.verify.verify import Verified
from hsops.verify.verify import verify as _verify

__all__ = [
    "Dump",
    "HsopsError",
    "check_dumps",
    "diagnose_bundle",
    "diagnose_log",
    "load_inventory",
    "read_dump",
    "runs",
    "samples",
]


@dataclass(frozen=True, slots=True)
class Dump:
    """The hidden states of one prompt.

    Args:
        token_ids: [T], int64.
        hidden_states: [T, slots, H], float32: the boundaries in ascending order, then the state after the last layer
            before its norm, if the patch takes that. What the file has as bf16 or f16 is widened without a loss.
        last_hidden_states: [T, H], float32: the state after the norm; None unless the patch takes it.
    """

    token_ids: npt.NDArray[np.int64]
    hidden_states: npt.NDArray[np.float32]
    last_hidden_states: npt.NDArray[np.float32] | None


def load_inventory(path: str | Path = "inventory.yaml") -> Inventory:
    """The checked inventory: ``.hosts``, ``.servers``, ``.patches`` by name, ``.default``.

    Raises:
        HsopsError: with every fault of the file, each with its line.
    """
    return load(Path(path))


def runs(host: HostSpec, server: str | None = None) -> tuple[Run, ...]:
    """Runs on a host, newest first, over a connection of its own.

    Args:
        host: of an inventory: ``load_inventory().hosts["rtx8"]``.
        server: only this one's.

    Raises:
        HsopsError: the host cannot be reached or asked.
    """
    from hsops.remote.agent import Agent
    from hsops.remote.connect import connect
    from hsops.remote.runs import list_runs

    reached = connect(host)
    try:
        return list_runs(Agent(reached, python=host.python, state_dir=host.state_dir), server)
    finally:
        reached.close()


def diagnose_log(path: str | Path, *, tp: int | None = None) -> Verdict:
    """What a server's log alone tells: ``name`` is the class; ``family``, ``confidence``, ``evidence``, ``remedy``.

    Args:
        path: the log.
        tp: how many ranks it is of, when it does not say.

    Raises:
        HsopsError: it is compressed, or no file.
        OSError: it cannot be read.
    """
    from hsops.core.files import open_file
    from hsops.diagnose.judge import judge
    from hsops.diagnose.log_file import digest
    from hsops.diagnose.reading import from_log

    with open_file(Path(path)) as file:
        found = digest(file, size=Path(path).stat().st_size)
    return judge(from_log(str(path), found.data, tp=tp, lines=found.lines))


def diagnose_bundle(path: str | Path) -> Verdict:
    """The verdict on evidence that ``hsops diagnose --save`` kept.

    Raises:
        HsopsError: it is no bundle.
        OSError: it cannot be read.
    """
    from hsops.core.files import open_file
    from hsops.diagnose.bundle import read
    from hsops.diagnose.judge import judge

    with open_file(Path(path)) as file:
        return judge(read(file, name=str(path)))


def samples(folder: str | Path) -> dict[str, Sample]:
    """What the manifest of a folder of dumps says, by id, with samples that failed: ``.ok``, ``.reason``, ``.tokens``.

    Raises:
        HsopsError: no such folder, or it has no manifest.
    """
    return latest(read_manifest(Path(folder))[0])


def read_dump(path: str | Path) -> Dump:
    """One dump, whole, in memory: T x slots x H x 4 bytes.

    Raises:
        HsopsError: it is no dump.
        OSError: it cannot be read.
    """
    file = Path(path)
    tensors = read_header(file)
    if missing := {"token_ids", "hidden_states"} - set(tensors):
        raise BadDataError(f"{file} has no tensor {min(missing)!r}", fix="hsops verify DIR checks a folder")
    tokens = np.frombuffer(read_tokens(file, tensors["token_ids"]), "<i8").astype(np.int64)
    last = _floats(file, tensors[LAST]) if LAST in tensors else None
    return Dump(tokens, _floats(file, tensors["hidden_states"]), last)


def check_dumps(folder: str | Path, prompts: str | Path = "", *, emit: Callable[[Event], Any] = ignore) -> Verified:
    """Check every dump of a folder, as ``hsops verify`` does; ``.findings`` are the faults.

    Args:
        folder: what ``hsops fetch`` wrote.
        prompts: a prompts file or dataset: each must have a dump of exactly its tokens.
        emit: told the progress.

    Raises:
        HsopsError: no such folder, no manifest, or faulty prompts.
    """
    read = read_prompts(str(prompts), emit) if prompts else None
    return _verify(Path(folder), read, emit)


def _floats(path: Path, tensor: Tensor) -> npt.NDArray[np.float32]:
    found: Sequence[npt.NDArray[np.float32]] = [_widened(bits, tensor.dtype) for bits in blocks(path, tensor)]
    return np.concatenate(found).reshape(tensor.shape) if found else np.empty(tensor.shape, np.float32)


def _widened(bits: npt.NDArray[np.unsignedinteger], dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "BF16":  # the upper half of a float32
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view({"F16": np.float16, "F32": np.float32}[dtype]).astype(np.float32)
