"""Prompts for the demo: token ids that the lab's tiny model knows."""

from __future__ import annotations

import json
import random
from pathlib import Path

VOCABULARY = range(3, 256)  # the lab's model: 256 tokens, the first three are special
LENGTHS = (4, 200)


def write(path: Path, count: int) -> None:
    """``count`` prompts as JSONL, the same on every machine."""
    rng = random.Random(7)  # noqa: S311 - reproducible, not secret
    lines = []
    for i in range(count):
        ids = [rng.choice(VOCABULARY) for _ in range(rng.randint(*LENGTHS))]
        lines.append(json.dumps({"id": f"demo-{i:04}", "input_ids": ids}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
