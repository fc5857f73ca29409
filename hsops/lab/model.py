"""The lab's model on disk: a tiny DeepSeek-V3 with fixed random weights."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from hsops.core.errors import LabError
from hsops.core.events import Emit, Note

SOURCE = Path(__file__).parent / "tiny"
SHA256 = "2145ab456c63ceb138bd11069cbe7ec9cfe25e0e466eb33e972da6b8dee3dc76"
DEADLINE_S = 300.0


def ensure(folder: Path, python: Path, emit: Emit) -> bool:
    """Write the model to ``folder`` with the torch of ``python``, unless it is there; says whether it did.

    Raises:
        LabError: torch does not run, or made other weights than on every other machine.
    """
    config = (SOURCE / "config.json").read_bytes()
    if is_whole(folder) and (folder / "config.json").read_bytes() == config:
        return False
    emit(Note(f"writing the model {folder.name}"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(config)
    _generate(folder, python)
    if not is_whole(folder):
        raise LabError(
            f"the weights in {folder} differ from those on other machines",
            why="tests compare hidden states with figures for one fixed set of random weights",
            fix="is the package set the pinned one? rm -r the lab's cache folder and run hsops lab up again",
        )
    return True


def is_whole(folder: Path) -> bool:
    """The weights are there and are the ones they should be."""
    try:
        return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == SHA256
    except FileNotFoundError:
        return False


def _generate(folder: Path, python: Path) -> None:
    argv = [str(python), "-I", str(SOURCE / "weights.py"), str(folder)]
    done = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S)
    if done.returncode != 0:
        raise LabError("the model's weights cannot be made", why=done.stderr.decode(errors="replace")[-500:].strip())
