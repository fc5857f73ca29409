"""Dumps held against the reference, state by state and row by row."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from hsops.core.events import ignore
from hsops.lab import model, packages

LIMIT = 1e-5  # |dump - truth| / |truth| of one sample and state; float32 rounding makes 1e-6 of it
WRONG_ROW = 1e-4  # the same of a single row; 3e-6 is the largest seen of right ones
TIE = 1e-5  # a router's choice that is less clear than this may go the other way in another right program
LAYERS = 6
DEADLINE_S = 900.0
SCRIPT = Path(__file__).with_name("reference.py")

States = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Truth:
    """The reference's states, one file a prompt."""

    folder: Path

    def of(self, prompt: str) -> States:
        """``0`` to ``5``, ``final`` and ``post``: [T, H] each; ``margin`` [T]: how clearly the routers chose."""
        with np.load(self.folder / f"{prompt}.npz") as kept:
            return dict(kept)


def compute(python: Path, weights: Path, prompts: Mapping[str, Sequence[int]], folder: Path) -> Truth:
    """Let transformers compute all prompts; ``folder`` must not be there yet."""
    asked = folder.with_name(f"{folder.name}.json")
    asked.write_text(json.dumps(prompts))
    subprocess.run([python, SCRIPT, weights, asked, folder], check=True, capture_output=True, timeout=DEADLINE_S)
    return Truth(folder)


def of_the_tiny_model(prompts: Mapping[str, Sequence[int]], folder: Path) -> Truth:
    """The reference for the model that every lab serves, with the lab's own interpreter. No lab need be up."""
    python = packages.ensure(ignore) / "bin/python"
    model.ensure(folder / "model", model.DEFAULT, python, ignore)
    return compute(python, folder / "model", prompts, folder / "truth")


@dataclass(frozen=True, slots=True)
class Held:
    """One state of one dump beside the truth.

    Args:
        sample: the dump's id.
        name: the boundary's number, ``final`` or ``post``.
        error: |dump - truth| / |truth|, over all rows.
        rows: the same for each row.
        decided: so many rows come before the first one with a tie of experts; rows from there on may go another way.
    """

    sample: str
    name: str
    error: float
    rows: NDArray[np.float32]
    decided: int


def hold(folder: Path, truth: Truth, boundaries: Sequence[int], *, shift: int = 0) -> Iterator[Held]:
    """Every state of every dump in ``folder``; a sample ``<series>.<prompt>`` is of that prompt.

    Args:
        shift: hold each state against the one so many layers off, to see how well that is told.
    """
    order = [*map(str, range(LAYERS)), "final"]
    for path in sorted(folder.glob("*.safetensors")):
        wanted = truth.of(path.stem.rpartition(".")[2])
        for name, state in states_of(path, boundaries).items():
            if name in order:
                against = wanted[order[min(order.index(name) + shift, LAYERS)]]
            elif shift:
                continue
            else:
                against = wanted[name]
            yield _held(path.stem, name, state, against, wanted["margin"])


def states_of(path: Path, boundaries: Sequence[int]) -> States:
    """The states of a dump by name."""
    tensors = load_file(path)
    held = tensors["hidden_states"]
    names = [*map(str, boundaries), "final"][: held.shape[1]]
    assert held.shape[1] == len(names), f"{path.name}: {held.shape[1]} states for boundaries {list(boundaries)}"
    found = {name: held[:, i] for i, name in enumerate(names)}
    return {**found, "post": tensors["last_hidden_states"]} if "last_hidden_states" in tensors else found


def largest(held: Iterator[Held]) -> dict[str, float]:
    """The largest error of a sample, by state."""
    errors: dict[str, float] = {}
    for one in held:
        errors[one.name] = max(one.error, errors.get(one.name, 0.0))
    return errors


def wrong_rows(held: Iterator[Held]) -> dict[str, float]:
    """The share of rows that are wrong, by state."""
    rows: dict[str, list[NDArray[np.float32]]] = {}
    for one in held:
        rows.setdefault(one.name, []).append(one.rows)
    return {name: round(float(np.mean(np.concatenate(all_) > WRONG_ROW)), 4) for name, all_ in rows.items()}


def smallest(held: Iterator[Held]) -> float:
    """The smallest error of any sample and state."""
    return min(one.error for one in held)


def _held(
    sample: str, name: str, state: NDArray[np.float32], against: NDArray[np.float32], margin: NDArray[np.float32]
) -> Held:
    assert state.shape == against.shape, f"{sample}: state {name} is {state.shape}, the prompt has {against.shape}"
    off, size = (np.linalg.norm(x.astype(np.float64), axis=1) for x in (state - against, against))
    ties = np.flatnonzero(margin < TIE)
    error = float(np.linalg.norm(off) / np.linalg.norm(size))
    return Held(sample, name, error, (off / size).astype(np.float32), int(ties[0]) if len(ties) else len(margin))
