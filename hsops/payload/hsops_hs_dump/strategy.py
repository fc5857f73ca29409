"""How to get at a boundary's value: chosen by what the installed code looks like, never by its version number.

Pure: a trunk's and its layers' code in, a choice out. hsops asks the same function before it deploys, and for the
table of models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import shape
from .code import Code, parameters

REGISTRY_FILE = "sglang/srt/models/registry.py"
COMMUNICATOR_FILE = "sglang/srt/layers/communicator.py"
COMMUNICATOR_CLASS = "LayerCommunicator"
HOOK_FLAG = "forward-hooks"  # of SGLang's command line, 0.5.6 on


@dataclass(frozen=True)
class Strategy:
    """One way, with the SGLang versions that it was held against a reference on.

    Args:
        name: what manifests and hello files call it.
        since, until: first and last version it was tried on.
        takes: where the value comes from, and why that is right under tensor parallelism.
    """

    name: str
    since: str
    until: str
    takes: str


LAYERS_TO_CAPTURE = Strategy(
    "layers-to-capture",
    "0.5.14",
    "0.5.23",
    "SGLang's own EAGLE-3 capture where the layer takes it after the all-reduce, switched on for the call only; the "
    "caller still gets the bare hidden states",
)
PREPARE_ATTN = Strategy(
    "prepare-attn",
    "0.5.4",
    "0.5.20",
    "the second value of layers[k].layer_communicator.prepare_attn: the sum of hidden and residual after the "
    "all-reduce, also where the all-reduce was left to this layer (fusion); copied at once, later layers write into it",
)
RESIDUAL_STREAM = Strategy(
    "residual-stream",
    "0.5.21",
    "0.5.23",
    "the batch's residual stream just after layers[k].attn_boundary.prepare, which completes what the layer before "
    "left open; copied at once, later layers write into it",
)
LAYER_INPUT = Strategy(
    "layer-input",
    "0.5.4",
    "0.5.23",
    "hidden + residual (or hidden alone) as layers[k] is called with them, the sum that SGLang's own capture makes in "
    "its loop; only for layers without a communicator: those reduce all they compute before they return",
)
STRATEGIES = (LAYERS_TO_CAPTURE, PREPARE_ATTN, RESIDUAL_STREAM, LAYER_INPUT)
FIRST, LAST = "0.5.4", "0.5.23"


@dataclass(frozen=True)
class Choice:
    """What fits the installed code.

    Args:
        strategy: its name; empty when none fits.
        looked_for: each thing that was looked for, and whether it is there.
    """

    strategy: str
    looked_for: dict[str, bool]

    @property
    def missing(self) -> str:
        """What was not found, for a message."""
        return ", ".join(what for what, there in self.looked_for.items() if not there)


def choose(trunk: Code, layers: Sequence[Code], communicators: Sequence[Code]) -> Choice:
    """The strategy for a trunk.

    Args:
        trunk: the class whose forward has the loop over the layers.
        layers: the classes of its layers.
        communicators: the classes of its layers' communicators; empty where they have none.
    """
    common = {
        f"{trunk.name}.forward(..., forward_batch)": "forward_batch" in parameters(trunk.forward),
        "self.norm in it": shape.uses_norm(trunk.forward),
        "one loop over self.layers in it": shape.loops_once(trunk.forward),
        "the class of its layers": bool(layers),
    }
    looked_for = dict(common)
    for strategy, wants in _WANTS:
        wanted = wants(trunk, layers, communicators)
        if all((*common.values(), *wanted.values())):
            return Choice(strategy.name, {**common, **wanted})
        looked_for.update(wanted)
    return Choice("", looked_for)


_Wants = Callable[[Code, Sequence[Code], Sequence[Code]], "dict[str, bool]"]


def _native(trunk: Code, layers: Sequence[Code], _communicators: Sequence[Code]) -> dict[str, bool]:
    collector = shape.hands_collector(trunk.forward)
    return {
        "layer(<collector> if i in self.layers_to_capture else None)": bool(collector),
        "the collector filled behind the all-reduce": bool(collector)
        and all(shape.passes_on(layer, collector) for layer in layers),
    }


def _prepared(_trunk: Code, layers: Sequence[Code], communicators: Sequence[Code]) -> dict[str, bool]:
    plain = [
        one.owners.get("prepare_attn") == COMMUNICATOR_CLASS and shape.returns_pairs(one.methods["prepare_attn"])
        for one in communicators
    ]
    return {
        "layer_communicator.prepare_attn in each layer": all(shape.prepares_once(layer) for layer in layers),
        f"{COMMUNICATOR_CLASS}.prepare_attn returning a pair": bool(plain) and all(plain),
    }


def _entered(_trunk: Code, layers: Sequence[Code], _communicators: Sequence[Code]) -> dict[str, bool]:
    return {
        "attn_boundary.prepare with a plain residual in each layer": all(shape.enters_once(layer) for layer in layers)
    }


def _called(trunk: Code, layers: Sequence[Code], _communicators: Sequence[Code]) -> dict[str, bool]:
    kind = shape.adds_in_loop(trunk.forward)
    starts = {"pair": shape.starts_with_sum, "single": shape.starts_with_hidden}.get(kind)
    return {
        "hidden (+ residual) captured in the loop": bool(kind),
        "layers without a communicator that start with just that": starts is not None
        and all(starts(layer) for layer in layers),
    }


_WANTS: tuple[tuple[Strategy, _Wants], ...] = (
    (LAYERS_TO_CAPTURE, _native),
    (PREPARE_ATTN, _prepared),
    (RESIDUAL_STREAM, _entered),
    (LAYER_INPUT, _called),
)
