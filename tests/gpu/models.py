"""Configurations shaped like DeepSeek-V3; weights are random."""

from __future__ import annotations

from typing import Any


def deepseek(
    layers: int,
    *,
    hidden: int = 7168,
    heads: int = 128,
    width: int = 2048,
    dense: int = 18432,
    vocabulary: int = 129280,
) -> dict[str, Any]:
    """A config.json.

    Args:
        layers: the first is dense, the others have experts.
        hidden: size of a row; heads: of attention; width: hidden size of an expert; dense: of the first layer.
        vocabulary: tokens.
    """
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": dense,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163840,
        "moe_intermediate_size": width,
        "moe_layer_freq": 1,
        "n_group": 8,
        "n_routed_experts": 32,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": heads,
        "num_experts_per_tok": 8,
        "num_hidden_layers": layers,
        "num_key_value_heads": heads,
        "num_nextn_predict_layers": 0,
        "pad_token_id": 1,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "rope_theta": 10000.0,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "v_head_dim": 128,
        "vocab_size": vocabulary,
    }
