"""Fixed random weights for the lab's tiny models: ``python weights.py FOLDER`` beside its config.json.

Runs with the lab's own torch. The values are bfloat16, hence exact in float32 too. They are large enough that every
layer visibly changes the residual stream: with the usual 0.02 a dump one layer off would look right.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SEED = 3357
STD = 0.15
EMBEDDING_STD = 1.0
BIAS_STD = 0.01  # the router's correction: small, so that it decides between close experts only

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def shapes(c: dict[str, Any]) -> Shapes:
    """Every tensor of the language model in a fixed order, by its Hugging Face name."""
    hidden = c["hidden_size"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield from attention(f"{layer}.self_attn", c)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        if i < c["first_k_dense_replace"]:
            yield from mlp(f"{layer}.mlp", hidden, c["intermediate_size"])
        else:
            yield from experts(f"{layer}.mlp", c)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (c["vocab_size"], hidden)


def attention(name: str, c: dict[str, Any]) -> Shapes:
    """Multi-head latent attention: down to a latent, norm, up to the heads, for queries and for keys with values."""
    hidden, heads, latent_q, latent_kv = (
        c[k] for k in ("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank")
    )
    nope, rope, value = (c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    yield f"{name}.q_a_proj.weight", (latent_q, hidden)
    yield f"{name}.q_a_layernorm.weight", (latent_q,)
    yield f"{name}.q_b_proj.weight", (heads * (nope + rope), latent_q)
    yield f"{name}.kv_a_proj_with_mqa.weight", (latent_kv + rope, hidden)
    yield f"{name}.kv_a_layernorm.weight", (latent_kv,)
    yield f"{name}.kv_b_proj.weight", (heads * (nope + value), latent_kv)
    yield f"{name}.o_proj.weight", (hidden, heads * value)


def experts(name: str, c: dict[str, Any]) -> Shapes:
    """The router, its correction, the routed experts and the shared one."""
    hidden, each = c["hidden_size"], c["moe_intermediate_size"]
    yield f"{name}.gate.weight", (c["n_routed_experts"], hidden)
    yield f"{name}.gate.e_score_correction_bias", (c["n_routed_experts"],)
    for i in range(c["n_routed_experts"]):
        yield from mlp(f"{name}.experts.{i}", hidden, each)
    yield from mlp(f"{name}.shared_experts", hidden, each * c["n_shared_experts"])


def mlp(name: str, hidden: int, inner: int) -> Shapes:
    """A gated feed-forward block."""
    yield f"{name}.gate_proj.weight", (inner, hidden)
    yield f"{name}.up_proj.weight", (inner, hidden)
    yield f"{name}.down_proj.weight", (hidden, inner)


def value(name: str, shape: tuple[int, ...], dice: torch.Generator) -> torch.Tensor:
    """The tensor ``name``: norms are ones, the router's correction stays float32 as in real checkpoints."""
    if "norm" in name:
        return torch.ones(shape, dtype=torch.bfloat16)
    random = torch.randn(shape, generator=dice)
    if name.endswith("e_score_correction_bias"):
        return random * BIAS_STD
    return (random * (EMBEDDING_STD if "embed_tokens" in name else STD)).to(torch.bfloat16)


def main(folder: Path) -> None:
    """Write ``model.safetensors`` beside ``folder``'s config.json; the same bytes every time."""
    dice = torch.Generator().manual_seed(SEED)
    config = json.loads((folder / "config.json").read_text())
    inner = "text_config" in config  # Kimi-K2.5: no image is ever sent, so its vision tower keeps what SGLang gave it
    prefix = "language_model." if inner else ""
    language = config["text_config"] if inner else config
    tensors = {prefix + name: value(name, shape, dice) for name, shape in shapes(language)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
