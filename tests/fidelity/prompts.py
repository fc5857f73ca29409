"""Prompts of fixed random token ids for the tiny model."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

LENGTHS = (1, 5, 33, 120)
CHUNK = 48  # prompts of 120 then come in three passes, and a pass holds the end of one prompt and others whole
Prompts = Mapping[str, Sequence[int]]


def short() -> dict[str, list[int]]:
    """Three prompts of each length."""
    dice = random.Random(7)
    return {f"n{n}-{i}": tokens(dice, n) for n in LENGTHS for i in range(3)}


def tokens(dice: random.Random, count: int) -> list[int]:
    """Token ids that are no special ones."""
    return [dice.randrange(3, 250) for _ in range(count)]


def write(path: Path, prompts: Prompts, series: str) -> Path:
    """Prompts as JSONL, with ids of their own: ``<series>.<prompt>``."""
    lines = [json.dumps({"id": f"{series}.{name}", "input_ids": list(ids)}) for name, ids in prompts.items()]
    path.write_text("\n".join(lines) + "\n")
    return path
