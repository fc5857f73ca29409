"""Whether this server's resolved arguments let every row reach the capture. Pure; the table is in ``rules``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .rules import GRAPH_WHY, GRAPHS_OFF, RULES, TOLD, Rule

# Fused all-reduce: a layer leaves its all-reduce to the next one, so between two layers there is only one rank's part
# of the sum. These strategies take the value after that all-reduce; any other is refused while fusion is on.
AFTER_REDUCE = {
    "prepare-attn": "taken from prepare_attn, after the all-reduce that was left to it",
    "layers-to-capture": "SGLang's own capture takes it after the all-reduce",
    "residual-stream": "taken when the layer has completed what the one before left open, after the all-reduce",
    "layer-input": "taken only of layers without a communicator, which leave no all-reduce to the next",
}
FUSION_OFF = {
    "enable_flashinfer_allreduce_fusion": "--enforce-disable-flashinfer-allreduce-fusion (0.5.10 and later)",
    "flashinfer_allreduce_fusion_backend": "--enforce-disable-flashinfer-allreduce-fusion",
    "enable_aiter_allreduce_fusion": "no --enable-aiter-allreduce-fusion",
}


@dataclass(frozen=True)
class Fusion:
    """All-reduce fusion, as it was resolved.

    Args:
        on: the arguments that switch it on; empty when it is off.
        fine: why captured values are whole; empty when they would not be.
    """

    on: tuple[str, ...]
    fine: str


def problems(arguments: Mapping[str, Any], strategy: str) -> list[str]:
    """Why capture would miss rows or take wrong ones with these arguments; empty when it is fine.

    Args:
        arguments: the server's, resolved.
        strategy: how values are taken.
    """
    found = [text for rule in RULES if (text := _broken(rule, arguments))]
    return found + _prefill_graph(arguments) + _partial_sums(fusion(arguments, strategy), strategy)


def facts(arguments: Mapping[str, Any], strategy: str) -> dict[str, Any]:
    """For the hello file, as JSON values: ``arguments`` that matter, ``prefill_graph``, ``fusion`` {on, fine}."""
    names = (*(rule.argument for rule in RULES), *TOLD)
    plain = (str, int, float, bool, type(None))
    found = fusion(arguments, strategy)
    return {
        "arguments": {n: v if isinstance(v := arguments[n], plain) else str(v) for n in names if n in arguments},
        "prefill_graph": bool(_prefill_graph(arguments)),
        "fusion": {"on": list(found.on), "fine": found.fine},
    }


def fusion(arguments: Mapping[str, Any], strategy: str) -> Fusion:
    """Whether all-reduces may be left to the next layer, and why that does no harm."""
    on = tuple(name for name in FUSION_OFF if arguments.get(name) not in (None, False))
    return Fusion(on, AFTER_REDUCE.get(strategy, "") if on else "off")


def _broken(rule: Rule, arguments: Mapping[str, Any]) -> str:
    if rule.argument not in arguments:
        # of a release without the argument there is nothing to fear; without a needed one nothing is known
        return f"{rule.argument}: this SGLang does not tell it, and {rule.why}" if rule.needed else ""
    value = arguments[rule.argument]
    return "" if value in rule.fine else f"{rule.argument}={value!r}: {rule.why}: {rule.remedy}"


def _prefill_graph(arguments: Mapping[str, Any]) -> list[str]:
    if arguments.get("device") == "cpu":
        return []
    if "cuda_graph_config" in arguments:  # 0.5.14 and later: what all the flags come to
        backend = _prefill_backend(arguments["cuda_graph_config"])
        fine = backend == "disabled" or (not backend and arguments.get("disable_prefill_cuda_graph") is True)
        return [] if fine else [f"prefill graphs are {backend or 'not told'}: {GRAPH_WHY}: {_turn_off(0)}"]
    if arguments.get("disable_piecewise_cuda_graph", True) is False:  # 0.5.10 to 0.5.13: on unless it is set
        return [f"disable_piecewise_cuda_graph=False: {GRAPH_WHY}: {_turn_off(1)}"]
    if arguments.get("enable_piecewise_cuda_graph"):  # up to 0.5.9
        return [f"enable_piecewise_cuda_graph=True: {GRAPH_WHY}: launch without --enable-piecewise-cuda-graph"]
    return []


def _turn_off(which: int) -> str:
    return f"launch with --{GRAPHS_OFF[which].flag}"


def _prefill_backend(config: Any) -> str:
    """``disabled``, ``breakable`` ...; "" when it is not there. A plain mapping from 0.5.19 on."""
    prefill = config.get("prefill") if isinstance(config, Mapping) else getattr(config, "prefill", None)
    backend = prefill.get("backend") if isinstance(prefill, Mapping) else getattr(prefill, "backend", None)
    return str(getattr(backend, "value", backend) or "").lower()


def _partial_sums(found: Fusion, strategy: str) -> list[str]:
    if not found.on or found.fine:
        return []
    ways = "; or ".join(dict.fromkeys(FUSION_OFF[name] for name in found.on))
    return [
        f"{', '.join(found.on)} is on: all-reduces are left to the next layer, so strategy {strategy!r} would take "
        f"one rank's part of a sum: launch with {ways}"
    ]
