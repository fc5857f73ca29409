"""How to get at a boundary's value: chosen by what the installed code looks like, never by its version number.

Pure: source texts in, a choice out. hsops asks the same function before it deploys.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

MODEL_CLASS = "DeepseekV2Model"
MODEL_FILE = "sglang/srt/models/deepseek_v2.py"
COMMUNICATOR_FILE = "sglang/srt/layers/communicator.py"


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


PREPARE_ATTN = Strategy(
    "prepare-attn",
    "0.5.6",
    "0.5.13",
    "the second value of layers[k].layer_communicator.prepare_attn: the sum of hidden and residual after the "
    "all-reduce, also where the all-reduce was left to this layer (fusion); copied at once, later layers write into it",
)
LAYERS_TO_CAPTURE = Strategy(
    "layers-to-capture",
    "0.5.14",
    "0.5.23",
    "SGLang's own EAGLE-3 capture, switched on for the call only; the caller still gets the bare hidden states",
)
STRATEGIES = (PREPARE_ATTN, LAYERS_TO_CAPTURE)


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


def choose(model_source: str, communicator_source: str) -> Choice:
    """The strategy for a model's module and the communicator's module.

    Args:
        model_source: text of ``MODEL_FILE``.
        communicator_source: text of ``COMMUNICATOR_FILE``; may be empty where there is none.
    """
    try:
        model, communicator = ast.parse(model_source), ast.parse(communicator_source)
    except SyntaxError:
        return Choice("", {"source that parses": False})
    forward = _method(model, MODEL_CLASS, "forward")
    common = {
        f"{MODEL_CLASS}.forward(..., forward_batch)": forward is not None and "forward_batch" in _parameters(forward),
        "self.norm in it": forward is not None and "norm" in _attributes(forward),
    }
    native = {
        "self.layers_to_capture in it": forward is not None and "layers_to_capture" in _attributes(forward),
        "layer(captured_last_layer_outputs=...) in it": forward is not None
        and "captured_last_layer_outputs" in _keywords(forward),
    }
    pair = {
        "layer_communicator.prepare_attn in the module": "prepare_attn" in _attributes(model),
        "LayerCommunicator.prepare_attn returning a pair": _returns_pairs(
            _method(communicator, "LayerCommunicator", "prepare_attn")
        ),
    }
    if all(common.values()):
        for strategy, wanted in ((LAYERS_TO_CAPTURE, native), (PREPARE_ATTN, pair)):
            if all(wanted.values()):
                return Choice(strategy.name, {**common, **wanted})
    return Choice("", {**common, **native, **pair})


def _method(tree: ast.Module, owner: str, name: str) -> ast.FunctionDef | None:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == owner:
            found = [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == name]
            return found[-1] if found else None
    return None


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _attributes(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def _keywords(tree: ast.AST) -> set[str]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {keyword.arg for call in calls for keyword in call.keywords if keyword.arg}


def _returns_pairs(function: ast.FunctionDef | None) -> bool:
    values = [node.value for node in _own_nodes(function) if isinstance(node, ast.Return)] if function else []
    return bool(values) and all(isinstance(value, ast.Tuple) and len(value.elts) == 2 for value in values)


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
