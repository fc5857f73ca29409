"""What a server must be launched with for every row to reach the capture: a table, held to the releases by a test.

``argument`` is a field of SGLang's ServerArgs. ``since`` and ``until`` are the first and last release that has it, from
0.5.4 on; an empty ``until`` means the latest one known. tests/unit/test_capture_rules.py holds every name to what
``scripts/sglang_arguments.py`` read in the releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OFF = (False, None)
ONE = (1, None)


@dataclass(frozen=True)
class Rule:
    """One argument and the values that are fine.

    Args:
        argument: its name; its flag is the same with dashes.
        fine: values that do no harm.
        why: what happens with any other.
        since, until: the releases that have it.
        source: where in SGLang this can be read; a path is relative to sglang/srt.
        flags: further spellings of the flag, without the dashes.
        needed: it must be set, and ``hsops launch`` adds it.
        instead: what to launch with; empty: without the flag.
    """

    argument: str
    fine: tuple[Any, ...]
    why: str
    since: str
    until: str
    source: str
    flags: tuple[str, ...] = ()
    needed: bool = False
    instead: str = ""

    @property
    def flag(self) -> str:
        """The flag, without dashes in front."""
        return self.argument.replace("_", "-")

    @property
    def remedy(self) -> str:
        """What to do about another value."""
        return f"launch with {self.instead}" if self.instead else f"launch without --{self.flag}"


_CACHE = "a prefix found in a cache is not computed again, so it gives no rows"
_SCATTERED = "rows are scattered over the ranks"
_SPLIT = "rows are split over the ranks"
_OTHERS = "each rank holds other rows"

RULES = (
    Rule("disable_radix_cache", (True,), _CACHE, "0.5.4", "", "managers/scheduler.py, mem_cache/registry.py",
         needed=True, instead="--disable-radix-cache"),
    Rule("enable_hierarchical_cache", OFF, _CACHE, "0.5.4", "",
         "server_args.py: refused beside --disable-radix-cache", flags=("enable-hicache",)),
    Rule("enable_lmcache", OFF, _CACHE, "0.5.4", "", "managers/scheduler.py, mem_cache/registry.py"),
    Rule("enable_flexkv", OFF, _CACHE, "0.5.16", "", "mem_cache/registry.py"),
    Rule("radix_cache_backend", (None,), _CACHE, "0.5.13", "", "mem_cache/registry.py: chosen before the switch"),
    Rule("enable_unified_cache_external_linker", OFF, _CACHE, "0.5.20", "", "mem_cache/registry.py"),
    Rule("enable_decoder_swa_bounded_replay", OFF, "rows of a prompt that only its last ones need are not computed",
         "0.5.21", "", "arg_groups/fields/exec_.py; DeepSeek-V4.1, on by default",
         instead="--no-enable-decoder-swa-bounded-replay"),
    Rule("enable_mixed_chunk", OFF, "decoding requests are mixed into prefill batches", "0.5.4", "",
         "managers/schedule_batch.py, mix_with_running"),
    Rule("enable_two_batch_overlap", OFF, "layers run outside the loop that is captured", "0.5.4", "",
         "models/deepseek_v2.py, model_forward_maybe_tbo"),
    Rule("enable_pdmux", OFF, "prefill is split over a path of its own", "0.5.4", "", "forward mode SPLIT_PREFILL"),
    Rule("enable_dp_attention", OFF, _OTHERS, "0.5.4", "", "layers/dp_attention.py"),
    Rule("attn_dp_size", ONE, _OTHERS, "0.5.22", "", "arg_groups/fields/parallel.py: what enable_dp_attention became",
         flags=("attention-data-parallel-size",)),
    Rule("dp_size", ONE, "several replicas would write into one folder", "0.5.4", "",
         "managers/data_parallel_controller.py", flags=("data-parallel-size",), instead="one server a replica"),
    Rule("dwdp_size", ONE, _OTHERS, "0.5.17", "", "handle_dwdp sets the size of attention DP"),
    Rule("moe_a2a_backend", (None, "none"), _SCATTERED, "0.5.4", "", "layers/communicator.py, ScatterMode"),
    Rule("moe_dense_tp_size", (None,), "rows of dense layers are scattered over the ranks", "0.5.4", "",
         "layers/communicator.py, ScatterMode"),
    Rule("moe_dp_size", ONE, "experts see a part of the rows", "0.5.9", "", "distributed/parallel_state.py",
         flags=("moe-data-parallel-size",)),
    Rule("enable_attn_tp_input_scattered", OFF, _SCATTERED, "0.5.6", "", "layers/communicator.py"),
    Rule("enable_layernorm_sp", OFF, _SCATTERED, "0.5.19", "", "layers/layernorm_sp.py"),
    Rule("attn_cp_size", ONE, _SPLIT, "0.5.9", "", "layers/dp_attention.py",
         flags=("attention-context-parallel-size",)),
    Rule("enable_nsa_prefill_context_parallel", OFF, _SPLIT, "0.5.6", "0.5.12", "models/deepseek_v2.py"),
    Rule("enable_dsa_prefill_context_parallel", OFF, _SPLIT, "0.5.13", "0.5.19", "models/deepseek_v2.py"),
    Rule("enable_prefill_context_parallel", OFF, _SPLIT, "0.5.10", "0.5.19", "layers/utils/cp_utils.py"),
    Rule("enable_prefill_cp", OFF, _SPLIT, "0.5.14", "", "server_args.py"),
    Rule("enable_cp_tp_group_sharing", OFF, _SPLIT, "0.5.22", "", "arg_groups/cp_tp_group_sharing_hook.py",
         instead="no prefill context parallelism: SGLang derives it"),
    Rule("pp_size", ONE, "no rank holds all layers", "0.5.4", "", "models/deepseek_v2.py, PPProxyTensors",
         flags=("pipeline-parallel-size",)),
    Rule("speculative_algorithm", (None,), "verification passes look like prefill", "0.5.4", "",
         "forward mode TARGET_VERIFY"),
    Rule("enable_return_aux_hidden_states", OFF, "SGLang captures itself, and the model returns two values", "0.5.23",
         "", "arg_groups/validation_hook.py, handle_aux_hidden_state_capture"),
    Rule("dllm_algorithm", (None,), "the model runs in blocks", "0.5.6", "", "forward mode DLLM_EXTEND"),
    Rule("disaggregation_mode", ("null", None), "another server computes the prompt, or takes the request over",
         "0.5.4", "", "disaggregation/"),
)  # fmt: skip

# In the hello file beside the rules' own: what tells one set of dumps from another.
TOLD = (
    "enable_flashinfer_allreduce_fusion", "flashinfer_allreduce_fusion_backend",
    "enforce_disable_flashinfer_allreduce_fusion", "enable_aiter_allreduce_fusion",
    "chunked_prefill_size", "disable_overlap_schedule", "disable_cuda_graph", "attention_backend",
    "prefill_attention_backend", "moe_runner_backend", "quantization", "kv_cache_dtype", "dtype",
    "enable_deterministic_inference", "enable_quant_communications", "enable_lora", "tp_size", "ep_size", "dcp_size",
    "nnodes", "device", "model_path", "revision", "model_impl",
)  # fmt: skip


@dataclass(frozen=True)
class GraphFlag:
    """A flag about CUDA graphs of the prefill, in the releases that take it.

    Args:
        flag: without dashes.
        off: values that turn the graphs off.
        since, until: the releases that take it and where it means that.
    """

    flag: str
    off: tuple[Any, ...]
    since: str
    until: str


GRAPH_WHY = "a prefill that is replayed as a CUDA graph runs no Python, so nothing would be captured"
# Up to 0.5.9 prefill graphs are made on request only. The first of these that SGLang knows is added at a launch.
GRAPHS_OFF = (
    GraphFlag("disable-prefill-cuda-graph", (True,), "0.5.14", ""),
    GraphFlag("disable-piecewise-cuda-graph", (True,), "0.5.10", "0.5.19"),
)
# Any of these does the same, or asks for the opposite with another value.
GRAPHS_SAID = (
    *GRAPHS_OFF,
    GraphFlag("cuda-graph-backend-prefill", ("disabled",), "0.5.14", ""),
    GraphFlag("disable-cuda-graph", (True,), "0.5.14", ""),  # before that, of decoding only
    GraphFlag("enable-piecewise-cuda-graph", (), "0.5.4", "0.5.13"),
    GraphFlag("enforce-piecewise-cuda-graph", (), "0.5.10", "0.5.19"),
    GraphFlag("enable-breakable-cuda-graph", (), "0.5.11", "0.5.19"),
)
GRAPH_CONFIG = GraphFlag("cuda-graph-config", (), "0.5.14", "")  # JSON, stronger than the flags
