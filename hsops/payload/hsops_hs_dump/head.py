"""What stands between a model's last state and its logits: which norm, which matrix. Pure.

Only what is known is judged: an architecture whose head does anything else (a norm with another formula, scaled
logits) would fail a check that is right, so it is refused by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

# RMSNorm x / rms * weight, then one matrix (0.5.4 to 0.5.23: layers/layernorm.py, layers/logits_processor.py)
PLAIN = frozenset(
    {
        "DeepseekForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeForCausalLM",
        "GptOssForCausalLM",
        "KimiK25ForConditionalGeneration",
        "LlamaForCausalLM",
        "MiniMaxM2ForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
    }
)
OWN_HEAD = ("Deepseek", "Kimi")  # these have an lm_head whatever tie_word_embeddings says
SCALES = ("logit_scale", "logits_scaling", "logits_scale", "lm_head_multiplier")
LANGUAGE = ("text_config", "language_config", "llm_config")
PLACES = (  # norm, lm_head, embedding
    ("model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"),
    ("language_model.model.norm.weight", "language_model.lm_head.weight", "language_model.model.embed_tokens.weight"),
    ("model.language_model.norm.weight", "lm_head.weight", "model.language_model.embed_tokens.weight"),
)


class UnknownHeadError(Exception):
    """The head is one that cannot be judged; the text says why."""


@dataclass(frozen=True)
class Head:
    """A head that can be computed.

    Args:
        norm: name of the last norm's weight.
        matrix: name of the matrix [vocabulary, H]; the embedding's where it is tied.
        epsilon: of the norm.
        cap: logits become cap * tanh(logits / cap); None where they do not.
        vocabulary: rows of the matrix that count; None means all.
    """

    norm: str
    matrix: str
    epsilon: float
    cap: float | None
    vocabulary: int | None


def head_of(config: Mapping[str, Any], names: Collection[str]) -> Head:
    """The head of a model.

    Args:
        config: its ``config.json``; that of the language part may lie inside.
        names: of its tensors.

    Raises:
        UnknownHeadError: it has another form than the known ones.
    """
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in PLAIN:
        raise UnknownHeadError(f"the head of {architecture} is not one that this check knows")
    text = next((config[key] for key in LANGUAGE if isinstance(config.get(key), Mapping)), config)
    for key in SCALES:
        if text.get(key) not in (None, 1, 1.0):
            raise UnknownHeadError(f"the logits are scaled ({key} = {text[key]!r})")
    if not isinstance(epsilon := text.get("rms_norm_eps"), float | int):
        raise UnknownHeadError("config.json names no rms_norm_eps")
    norm, matrix = _names(architecture, text, names)
    cap, vocabulary = text.get("final_logit_softcapping"), text.get("vocab_size")
    return Head(
        norm,
        matrix,
        float(epsilon),
        float(cap) if isinstance(cap, float | int) and cap > 0 else None,
        vocabulary if isinstance(vocabulary, int) else None,
    )


def _names(architecture: str, text: Mapping[str, Any], names: Collection[str]) -> tuple[str, str]:
    for norm, matrix, embedding in PLACES:
        if norm not in names:
            continue
        stem = matrix.removesuffix("weight")
        if odd := sorted(n for n in names if n.startswith(stem) and n not in (matrix, stem + "bias")):
            raise UnknownHeadError(f"lm_head is quantised: the checkpoint has {odd[0]}")
        if stem + "bias" in names:
            raise UnknownHeadError("lm_head has a bias")
        tied = bool(text.get("tie_word_embeddings")) and not architecture.startswith(OWN_HEAD)
        if matrix in names and not tied:
            return norm, matrix
        if embedding in names and not architecture.startswith(OWN_HEAD):
            return norm, embedding
        raise UnknownHeadError(f"the checkpoint has no {matrix}")
    raise UnknownHeadError("the checkpoint has no last norm under a known name")
