"""Which ``eagle_aux_hidden_state_layer_ids`` make an engine feed a drafter the states that it learned from.

The same numbers mean other layers in other engines and releases. Read from ``set_eagle3_layers_to_capture`` of every
model in SGLang 0.5.4 to 0.5.23; what counts is the module that the trunk's class is defined in, as wrappers such as
Kimi-K2.5's hand the ids on. vLLM takes boundaries as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Version = tuple[int, ...]
Rule = Callable[[Sequence[int]], "tuple[int, ...] | None"]


def as_they_are(boundaries: Sequence[int]) -> tuple[int, ...] | None:
    """Id k is boundary k."""
    return tuple(boundaries)


def one_less(boundaries: Sequence[int]) -> tuple[int, ...] | None:
    """Id k is the output of layer k: boundary k + 1. Boundary 0, the embedding, has none."""
    return tuple(k - 1 for k in boundaries) if min(boundaries) > 0 else None


def unless_first_is_one(boundaries: Sequence[int]) -> tuple[int, ...] | None:
    """Id k is boundary k, except that all are raised by one when the first id is 1: boundary 1 cannot come first."""
    return tuple(boundaries) if boundaries[0] != 1 else None


ALWAYS: Version = (0,)
PLAIN = (
    *("apertus", "bailing_moe", "exaone_moe", "gemma3_causal", "gemma4_causal", "glm4_moe", "glm5_next", "llama"),
    *("longcat_flash", "minimax_m2", "minimax_m3", "qwen2", "qwen2_moe", "qwen3", "qwen3_5_text", "qwen3_moe"),
    *("qwen3_next", "qwen3_vl", "gpt_oss"),  # gpt_oss, from 0.5.17 on: unless the last id is the number of layers
)
_CHANGED = ((ALWAYS, one_less), ((0, 5, 13), unless_first_is_one))  # sglang PR #25454
SGLANG: dict[str, tuple[tuple[Version, Rule], ...]] = {
    "deepseek_v2": _CHANGED,
    "glm4_moe_lite": _CHANGED,  # came with 0.5.13
    **dict.fromkeys(PLAIN, ((ALWAYS, one_less),)),
}


def drafter_ids(boundaries: Sequence[int], engine: str, version: str = "", module: str = "") -> tuple[int, ...] | None:
    """The ids for a drafter's configuration.

    Args:
        boundaries: ascending, as dumps have them.
        engine: ``sglang`` or ``vllm``.
        version: of SGLang.
        module: file in SGLang's ``models`` that defines the trunk, without ``.py``: ``deepseek_v2`` also for Kimi-K2.5.

    Returns:
        None when no ids say this, or it is not known.
    """
    if engine == "vllm":
        return as_they_are(boundaries)
    rules = [rule for since, rule in SGLANG.get(module, ()) if since <= parsed(version)]
    return rules[-1](boundaries) if rules else None


def told(boundaries: Sequence[int], module: str) -> dict[str, list[int] | None]:
    """By engine and range of releases, for a dump's metadata."""
    found: dict[str, list[int] | None] = {"vllm": list(boundaries)}
    rules = SGLANG.get(module, ())
    for place, (since, rule) in enumerate(rules):
        until = rules[place + 1][0] if place + 1 < len(rules) else None
        span = ",".join([f">={_text(since)}"] * (since != ALWAYS) + [f"<{_text(until)}"] * bool(until))
        ids = rule(boundaries)
        found[f"sglang{span}"] = list(ids) if ids is not None else None
    return found


def parsed(version: str) -> Version:
    """``0.5.12.post1`` -> (0, 5, 12, 1): enough to compare releases of SGLang."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _text(version: Version | None) -> str:
    return ".".join(str(number) for number in version or ())
