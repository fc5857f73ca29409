"""Random weights on the GPU: ``python weigh.py CONFIG.json WEIGHTS.safetensors [DEVICE]``; by SGLang's interpreter.

Every matrix keeps the size of what goes through it (1.2 over the square root of its inputs), so that each layer changes
the stream about as much as a trained one's does: ``--load-format dummy`` makes weights next to nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "hsops/lab/tiny"))

import weights

GAIN = 1.2
HEAD_GAIN = 4.0  # of lm_head: log-probabilities that tell tokens apart


def main(config: Path, target: Path, device: str = "cuda") -> None:
    """Write ``target`` for the model of ``config``."""
    dice = torch.Generator(device).manual_seed(weights.SEED)
    tensors = {name: made(name, shape, dice).cpu() for name, shape in weights.shapes(json.loads(config.read_text()))}
    save_file(tensors, target, metadata={"format": "pt"})


def made(name: str, shape: tuple[int, ...], dice: torch.Generator) -> torch.Tensor:
    """One tensor."""
    if "norm" in name:
        return torch.ones(shape, dtype=torch.bfloat16, device=dice.device)
    random = torch.randn(shape, generator=dice, device=dice.device)
    if name.endswith("e_score_correction_bias"):
        return random * weights.BIAS_STD
    if "embed_tokens" in name:
        return random.to(torch.bfloat16)
    gain = HEAD_GAIN if name.startswith("lm_head") else GAIN
    return (random * (gain / shape[-1] ** 0.5)).to(torch.bfloat16)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
