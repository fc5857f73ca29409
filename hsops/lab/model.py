"""The lab's models on disk: a tiny DeepSeek-V3 with fixed random weights, the same inside Kimi-K2.5's wrapper, and one
with heads for eight ranks."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hsops.core.errors import LabError, UsageError
from hsops.core.events import Emit, Note

SOURCE = Path(__file__).parent / "tiny"
KIMI = SOURCE / "kimi"
DEADLINE_S = 300.0
DEFAULT = "deepseek"


@dataclass(frozen=True, slots=True)
class Tiny:
    """A model that a lab can serve.

    Args:
        folder: its name below the lab's ``models``.
        sha256: of its weights, the same on every machine.
        args: flags that its server needs besides the lab's.
        heads: of its attention; every rank needs one.
    """

    folder: str
    sha256: str
    args: dict[str, str]
    heads: int = 4


MODELS = {
    DEFAULT: Tiny(
        folder="tiny-deepseek-v3",
        sha256="94d7d170209f3174c61600497ecc6331baf6ac47c4db4a9b71961a0fca03f266",
        args={},
    ),
    "kimi": Tiny(
        folder="tiny-kimi-k2.5",
        sha256="7a4713eff7bad380c82e80bbfcbdc245fd85744864ef156bb21700a5b5fcbdf6",
        args={"trust-remote-code": "true"},
    ),
    "deepseek-wide": Tiny(
        folder="tiny-deepseek-v3-wide",
        sha256="eb633d225a436802ad228da61f3000e71e99da0c82d28fdf0718d6d57612c592",
        args={},
        heads=8,
    ),
}


def check(name: str) -> str:
    """A model as a user typed it.

    Raises:
        UsageError: there is no such model.
    """
    if name not in MODELS:
        raise UsageError(f"there is no model {name!r}", fix=f"one of: {', '.join(MODELS)}")
    return name


def fitting(name: str, tp: int) -> str:
    """The model to serve on ``tp`` ranks: ``name``, or, where the default one has too few heads for them, the wide one.

    Raises:
        UsageError: its heads cannot be dealt out evenly.
    """
    if name == DEFAULT and tp > MODELS[DEFAULT].heads:
        name = "deepseek-wide"
    heads = MODELS[name].heads
    if heads % tp:
        can = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise UsageError(f"the {heads} heads of {name} cannot be shared by {tp} ranks", fix=f"--tp {can}")
    return name


def ensure(folder: Path, name: str, python: Path, emit: Emit) -> bool:
    """Write the model ``name`` to ``folder`` with the torch of ``python``, unless it is there; says whether it did.

    Raises:
        LabError: torch does not run, or made other weights than on every other machine.
    """
    wanted, sha256 = files(name), MODELS[name].sha256
    if is_whole(folder, sha256) and all(_is(folder / file, data) for file, data in wanted.items()):
        return False
    emit(Note(f"writing the model {folder.name}"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file, data in wanted.items():
        (folder / file).write_bytes(data)
    _generate(folder, python)
    if not is_whole(folder, sha256):
        raise LabError(
            f"the weights in {folder} differ from those on other machines",
            why="tests compare hidden states with figures for one fixed set of random weights",
            fix="is the package set the pinned one? rm -r the lab's cache folder and run hsops lab up again",
        )
    return True


def files(name: str) -> dict[str, bytes]:
    """What lies beside the weights. Kimi-K2.5 is the same language model as ``text_config``."""
    config = (SOURCE / "config.json").read_bytes()
    if name == DEFAULT:
        return {"config.json": config}
    if name == "deepseek-wide":
        heads = MODELS[name].heads
        wide = {**json.loads(config), "num_attention_heads": heads, "num_key_value_heads": heads}
        return {"config.json": json.dumps(wide, indent=2).encode() + b"\n"}
    found = {path.name: path.read_bytes() for path in KIMI.iterdir() if path.is_file()}
    wrapper = {**json.loads(found["config.json"]), "text_config": json.loads(config)}
    return {**found, "config.json": json.dumps(wrapper, indent=2).encode() + b"\n"}


def is_whole(folder: Path, sha256: str) -> bool:
    """The weights are there and are the ones they should be."""
    try:
        return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == sha256
    except FileNotFoundError:
        return False


def _is(path: Path, data: bytes) -> bool:
    return path.exists() and path.read_bytes() == data


def _generate(folder: Path, python: Path) -> None:
    argv = [str(python), "-I", str(SOURCE / "weights.py"), str(folder)]
    done = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S)
    if done.returncode != 0:
        raise LabError("the model's weights cannot be made", why=done.stderr.decode(errors="replace")[-500:].strip())
