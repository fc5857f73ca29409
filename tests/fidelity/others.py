"""Tiny models of other families with random weights, and their reference by Hugging Face transformers.

Run by the lab's interpreter: ``python others.py KIND MODEL PROMPTS.json OUT``. Writes the model's folder MODEL and, as
``reference.py`` does, a file ``<id>.npz`` a prompt into the folder OUT.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from states import follow

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 1024,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
# as published: SGLang 0.5.9 does not find the value where transformers 5 keeps it, and takes this one
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SMALL),
    "qwen3": ("Qwen3Config", {**SMALL, **ROPE}),
    "qwen3-moe": ("Qwen3MoeConfig", {**SMALL, **EXPERTS}),
}


def main(kind: str, model_path: str, prompts_path: str, out: str) -> None:
    """Make the model, then compute and write every state of every prompt."""
    torch.manual_seed(11)
    config_class, values = CONFIGS[kind]
    config = getattr(transformers, config_class)(**values)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(model_path)
    states: dict[str, torch.Tensor] = {}
    follow(model.model, states)
    folder = Path(out)
    folder.mkdir()
    for name, ids in json.loads(Path(prompts_path).read_text(encoding="utf-8")).items():
        with torch.no_grad():
            model.model(torch.tensor([ids]))
        found = {key: state[0].numpy() for key, state in states.items()}
        np.savez(folder / name, margin=np.full(len(ids), np.inf, np.float32), **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
