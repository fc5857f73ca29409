"""The trunk of a built model: the part with the loop over the layers. Found among its modules, read as source text."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

from .code import Code, class_in, code
from .shape import BOUNDARY, COMMUNICATOR
from .strategy import Choice, choose

MISSING_LAYER = "PPMissingLayer"  # stands for a layer that another pipeline stage has


@dataclass(frozen=True)
class Trunk:
    """A candidate and the strategy that fits it.

    Args:
        module: the module itself.
        where: its name in the model; empty for the model itself.
        choice: what fits.
    """

    module: Any
    where: str
    choice: Choice

    @property
    def name(self) -> str:
        """Its class and place, for people."""
        return f"{type(self.module).__name__} at {self.where or 'the top'}"


def trunks(model: Any) -> list[Trunk]:
    """All modules of ``model`` that have layers, a last norm, and a forward that takes ``forward_batch``."""
    return [Trunk(module, where, _choose(module)) for where, module in model.named_modules() if _is_trunk(module)]


def gpu_of(module: Any) -> Any:
    """The GPU that a built module computes on, as torch names it; None on a CPU.

    With CPU offload a layer's weights wait in host memory, so the first parameter says nothing; with all of them there,
    what is left on the GPU are buffers.
    """
    tensors = itertools.chain(module.parameters(), module.buffers())
    return next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)


def _is_trunk(module: Any) -> bool:
    if not (hasattr(module, "norm") and hasattr(module, "layers") and hasattr(module.layers, "__len__")):
        return False
    return "forward_batch" in inspect.signature(type(module).forward).parameters


def _choose(module: Any) -> Choice:
    layers = [layer for layer in module.layers if type(layer).__name__ != MISSING_LAYER]
    communicators = [getattr(layer, COMMUNICATOR) for layer in layers if hasattr(layer, COMMUNICATOR)]
    if any(hasattr(layer, COMMUNICATOR) != hasattr(layers[0], COMMUNICATOR) for layer in layers):
        communicators = []  # some have one and some have not: no shape that is known
    boundaries = {hasattr(layer, BOUNDARY) for layer in layers}
    return (
        choose(_code(type(module)), _codes(layers), _codes(communicators))
        if len(boundaries) < 2
        else Choice("", {f"{BOUNDARY} in all layers or in none": False})
    )


def _codes(things: list[Any]) -> list[Code]:
    return [_code(kind) for kind in dict.fromkeys(type(thing) for thing in things)]


def _code(kind: type) -> Code:
    """A class's own methods and those of its bases, of torch's ``Module`` excepted."""
    lineage = [base for base in kind.__mro__ if not base.__module__.startswith(("torch.", "builtins"))]
    definitions = [class_in(_tree(base.__module__), base.__name__) for base in lineage]
    return code(kind.__name__, [definition for definition in definitions if definition])


@cache
def _tree(module: str) -> ast.Module:
    """A module's source; an empty one where it cannot be had."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if not path:
        return ast.Module([], [])
    try:
        with open(path, encoding="utf-8-sig") as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])
