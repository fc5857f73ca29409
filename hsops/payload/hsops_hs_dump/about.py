"""What every dump of a process says of where it comes from: in its header, where the padding to a page has room."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from . import drafter_ids
from .process import Process

FLAGS = (
    "quantization",
    "dtype",
    "kv_cache_dtype",
    "attention_backend",
    "prefill_attention_backend",
    "moe_runner_backend",
    "chunked_prefill_size",
    "enable_flashinfer_allreduce_fusion",
    "flashinfer_allreduce_fusion_backend",
    "enable_aiter_allreduce_fusion",
)
CONVENTION = (
    "boundary k: residual stream before layer k = output of layer k-1, summed over ranks; hidden_states: boundaries "
    "ascending, then with final pre-norm or both the state before the last norm; last_hidden_states: that after it"
)
SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})(?:/|$)")


def about(model: Any, served: str, process: Process, boundaries: Sequence[int]) -> dict[str, str]:
    """Facts of this process for the header of its dumps.

    Args:
        model: the trunk.
        served: the class of the whole model; may be empty.
        process: what SGLang says.
        boundaries: ascending.
    """
    arguments = process.arguments
    config = next(
        (found for part in (model, *list(model.layers)[:1]) if (found := getattr(part, "config", None))), None
    )
    module = type(model).__module__.rpartition(".")[2]
    flags = {name: _plain(arguments[name]) for name in FLAGS if name in arguments}
    return {
        "convention": CONVENTION,
        "output_layers": ",".join(str(k - 1) for k in boundaries),
        "eagle_aux_hidden_state_layer_ids": json.dumps(drafter_ids.told(boundaries, module)),
        "model": str(arguments.get("model_path", "")),
        "revision": revision(arguments, config),
        "architecture": served or type(model).__name__,
        "trunk": f"{module}.{type(model).__name__}",
        "tp_size": str(process.tp_size),
        "torch": _version("torch"),
        "flags": json.dumps(flags),
    }


def revision(arguments: Mapping[str, Any], config: Any) -> str:
    """The commit of the model's repository, or what was asked for; empty when it cannot be told."""
    in_path = SNAPSHOT.search(str(arguments.get("model_path", "")))
    commit = getattr(config, "_commit_hash", None) or (in_path and in_path[1]) or arguments.get("revision")
    return str(commit or "")


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
