"""Random weights on the GPU: ``python weigh.py CONFIG.json WEIGHTS.safetensors [DEVICE]``; by SGLang's interpreter.

Every matrix keeps the size of what goes through it (1.2 over the square root of its inputs), so that each layer changes
the stream about as much as a trained one's does: ``--load-format dummy`` makes weights next to nothing.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "hsops/lab/tiny"))

import weights

BIAS = "e_score_correction_bias"
GAIN = 1.2
HEAD_GAIN = 4.0  # of lm_head: log-probabilities that tell tokens apart


def main(config: Path, target: Path, device: str = "cuda") -> None:
    """Write ``target`` for the model of ``config``, a tensor at a time: all of it twice may not fit into memory."""
    dice = torch.Generator(device).manual_seed(weights.SEED)
    shapes = list(weights.shapes(json.loads(config.read_text())))
    sizes = [math.prod(shape) * (4 if name.endswith(BIAS) else 2) for name, shape in shapes]
    ends = list(itertools.accumulate(sizes))
    header = {
        name: {"dtype": "F32" if name.endswith(BIAS) else "BF16", "shape": shape, "data_offsets": [end - size, end]}
        for (name, shape), size, end in zip(shapes, sizes, ends, strict=True)
    }
    told = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    told += b" " * (-len(told) % 8)
    buffer = torch.empty(max(sizes), dtype=torch.uint8, pin_memory=device == "cuda")
    with target.open("wb") as file:
        file.write(len(told).to_bytes(8, "little") + told)
        for (name, shape), size in zip(shapes, sizes, strict=True):
            buffer[:size].copy_(made(name, shape, dice).view(-1).view(torch.uint8))
            file.write(memoryview(buffer[:size].numpy()))


def made(name: str, shape: tuple[int, ...], dice: torch.Generator) -> torch.Tensor:
    """One tensor."""
    if "norm" in name:
        return torch.ones(shape, dtype=torch.bfloat16, device=dice.device)
    random = torch.randn(shape, generator=dice, device=dice.device)
    if name.endswith(BIAS):
        return random * weights.BIAS_STD
    if "embed_tokens" in name:
        return random.to(torch.bfloat16)
    gain = HEAD_GAIN if name.startswith("lm_head") else GAIN
    return (random * (gain / shape[-1] ** 0.5)).to(torch.bfloat16)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
