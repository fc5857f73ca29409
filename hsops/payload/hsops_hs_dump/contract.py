"""What a server must be launched with for every row to reach the capture. Pure rules over its resolved arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """One argument and the values that are fine. An argument that this SGLang does not have is fine too."""

    argument: str
    fine: tuple[Any, ...]
    why: str


OFF = (False, None)
RULES = (
    Rule("disable_radix_cache", (True,), "cached prefixes give no rows: launch with --disable-radix-cache"),
    Rule("enable_mixed_chunk", OFF, "decoding requests are mixed into prefill batches"),
    Rule("enable_two_batch_overlap", OFF, "layers run outside the loop that is captured"),
    Rule("enable_pdmux", OFF, "prefill is split over a path of its own"),
    Rule("enable_dp_attention", OFF, "each rank holds other rows"),
    Rule("moe_a2a_backend", (None, "none"), "rows are scattered over the ranks"),
    Rule("moe_dense_tp_size", (None,), "rows of dense layers are scattered over the ranks"),
    Rule("enable_attn_tp_input_scattered", OFF, "rows are scattered over the ranks"),
    Rule("enable_layernorm_sp", OFF, "rows are scattered over the ranks"),
    Rule("attn_cp_size", (1, None), "rows are split over the ranks"),
    Rule("enable_nsa_prefill_context_parallel", OFF, "rows are split over the ranks"),
    Rule("enable_prefill_context_parallel", OFF, "rows are split over the ranks"),
    Rule("enable_prefill_cp", OFF, "rows are split over the ranks"),
    Rule("pp_size", (1, None), "no rank holds all layers"),
    Rule("speculative_algorithm", (None,), "verification passes look like prefill"),
    Rule("dllm_algorithm", (None,), "the model runs in blocks"),
)
# Both strategies take the value after the all-reduce, so fusion needs no rule; it is told in the hello file.
TOLD = (
    "enable_flashinfer_allreduce_fusion",
    "flashinfer_allreduce_fusion_backend",
    "enable_aiter_allreduce_fusion",
    "chunked_prefill_size",
    "attention_backend",
    "quantization",
    "kv_cache_dtype",
    "dtype",
    "tp_size",
    "nnodes",
    "device",
    "model_path",
)


def problems(arguments: Mapping[str, Any]) -> list[str]:
    """Why capture would miss rows or take wrong ones with these arguments; empty when it is fine."""
    found = [
        f"{rule.argument}={arguments[rule.argument]!r}: {rule.why}"
        for rule in RULES
        if rule.argument in arguments and arguments[rule.argument] not in rule.fine
    ]
    return found + _prefill_graph(arguments)


def told(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that belong in the hello file, as JSON values."""
    names = (*(rule.argument for rule in RULES), *TOLD)
    plain = (str, int, float, bool, type(None))
    return {n: v if isinstance(v := arguments[n], plain) else str(v) for n in names if n in arguments}


def _prefill_graph(arguments: Mapping[str, Any]) -> list[str]:
    """A prefill that is replayed as a CUDA graph runs no Python, so nothing would be captured."""
    why = "prefill is replayed as a CUDA graph: launch with"
    if arguments.get("device") == "cpu":
        return []
    if (config := arguments.get("cuda_graph_config")) is not None:  # 0.5.14+
        backend = str(getattr(getattr(config, "prefill", None), "backend", None))
        return [] if backend.lower().endswith("disabled") else [f"{why} --disable-prefill-cuda-graph"]
    if arguments.get("disable_piecewise_cuda_graph", True) is False:  # 0.5.10 to 0.5.13
        return [f"{why} --disable-piecewise-cuda-graph"]
    if arguments.get("enable_piecewise_cuda_graph"):  # up to 0.5.9
        return [f"{why}out --enable-piecewise-cuda-graph"]
    return []
