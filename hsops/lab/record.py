"""What a lab was built from, and what is to be done when something else is wanted."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from hsops.lab.model import DEFAULT

TP = 2


@dataclass(frozen=True, slots=True)
class Record:
    """A lab's make-up.

    Args:
        sglang: version of SGLang.
        packages: key of the package set.
        python: version and place of the interpreter that the lab's is a copy of.
        shims: key of the shims' content.
        fault: the fault that is armed; None for none.
        tp: tensor-parallel size of the server in the inventory.
        inventory: hash of the inventory as we wrote it, to tell whether a user edited it since.
        model: one of ``hsops.lab.model.MODELS``.
    """

    sglang: str
    packages: str
    python: str
    shims: str
    fault: str | None
    tp: int
    inventory: str
    model: str = DEFAULT


@dataclass(frozen=True, slots=True)
class Steps:
    """What ``lab up`` has to do.

    Args:
        environment: build the environment anew: interpreter and SGLang's files.
        furnish: bring shims and fault up to date.
        inventory: write the inventory.
    """

    environment: bool
    furnish: bool
    inventory: bool


def plan(have: Record | None, want: Record) -> Steps:
    """The steps from the lab that is there to the one that is wanted."""
    if have is None:
        return Steps(environment=True, furnish=True, inventory=True)
    environment = (have.sglang, have.packages, have.python) != (want.sglang, want.packages, want.python)
    furnish = environment or (have.shims, have.fault) != (want.shims, want.fault)
    return Steps(environment=environment, furnish=furnish, inventory=have.inventory != want.inventory)


def read(path: Path) -> Record | None:
    """The record at ``path``; None when there is none or it was written by another hsops."""
    try:
        return Record(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write(path: Path, record: Record) -> None:
    """Store ``record`` whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(asdict(record), indent=2) + "\n")
    temporary.replace(path)
