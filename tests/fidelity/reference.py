"""The independent reference: Hugging Face transformers' DeepSeek-V3 in float32 with eager attention.

Run by the lab's interpreter: ``python reference.py MODEL PROMPTS.json OUT``. Writes a file ``<id>.npz`` a prompt into
the folder OUT: ``<k>`` [T, H], the input of layer k; ``final``, the input of the last norm; ``post``, its output;
``margin`` [T], how clearly the routers chose. It shares no line with the capture. Prompts of like length are computed
together, the shorter ones filled up at their end, which a causal model's earlier rows do not see.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from states import follow
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3ForCausalLM

ROWS = 4096  # of one pass
FILL = 3


def main(model_path: str, prompts_path: str, out: str) -> None:
    """Compute and write every state of every prompt."""
    model = DeepseekV3ForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="eager").eval()
    states: dict[str, torch.Tensor] = {}
    follow(model.model, states)
    follow_routers(model.model, states)
    prompts = json.loads(Path(prompts_path).read_text(encoding="utf-8"))
    folder = Path(out)
    folder.mkdir()
    for names in batches({name: len(ids) for name, ids in prompts.items()}):
        longest = max(len(prompts[name]) for name in names)
        filled = [prompts[name] + [FILL] * (longest - len(prompts[name])) for name in names]
        states["margin"] = torch.full((len(names), longest), torch.inf)
        with torch.no_grad():
            model.model(torch.tensor(filled))
        for i, name in enumerate(names):
            np.savez(folder / name, **{key: state[i, : len(prompts[name])].numpy() for key, state in states.items()})


def follow_routers(trunk: Any, states: dict[str, torch.Tensor]) -> None:
    """Keep in ``margin`` [B, T] the least clear choice of all routers."""

    def decide(router: Any, _args: Any, logits: torch.Tensor) -> None:
        clear = margin(logits.sigmoid() + router.e_score_correction_bias, router.config)
        states["margin"] = torch.minimum(states["margin"], clear.view_as(states["margin"]))

    for layer in trunk.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.register_forward_hook(decide)


def margin(scores: torch.Tensor, config: Any) -> torch.Tensor:
    """By how much the last group and the last expert that were chosen lead the first that were not.

    Where it is no more than rounding, two right programs choose differently, and go apart from there on.
    """
    groups = scores.view(len(scores), config.n_group, -1)
    ranked = groups.topk(2, dim=-1).values.sum(dim=-1).sort(dim=-1, descending=True)
    chosen = ranked.indices[:, : config.topk_group]
    among = groups.gather(1, chosen.unsqueeze(-1).expand(-1, -1, groups.shape[-1])).flatten(1)
    leads = [
        (ranked.values, config.topk_group),
        (among.sort(dim=-1, descending=True).values, config.num_experts_per_tok),
    ]
    return torch.stack([held[:, k - 1] - held[:, k] for held, k in leads]).amin(dim=0)


def batches(lengths: dict[str, int]) -> Iterator[list[str]]:
    """Names of prompts to be computed together, longest first."""
    waiting = sorted(lengths, key=lambda name: -lengths[name])
    while waiting:
        count = max(1, ROWS // lengths[waiting[0]])
        yield waiting[:count]
        waiting = waiting[count:]


if __name__ == "__main__":
    main(*sys.argv[1:])
