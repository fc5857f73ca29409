"""What can be told of a model's loop over its layers, and of a layer, by their syntax trees. Pure.

SGLang's models are written in a handful of ways. Each predicate knows one of them exactly; what it does not know, it
denies.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .code import Code, attributes, calls, is_of_self, own_nodes, parameters

WANTED = "layers_to_capture"
# what the loop calls the collector that it hands to a layer
COLLECTORS = ("captured_last_layer_outputs", "capture_output")
COMMUNICATOR, BOUNDARY = "layer_communicator", "attn_boundary"
PREPARES = ("prepare_attn", "prepare_attn_and_capture_last_layer_outputs")
# a residual stream that is not plainly added to is declared with one of these
OTHER_RESIDUALS = {"update", "residual_ops"}
DEFERRED = {COMMUNICATOR, BOUNDARY, "moe_layer_communicator", "_sglang_needs_allreduce_fusion"}


def hands_collector(forward: ast.FunctionDef) -> str:
    """The keyword by which each wanted layer gets a collector of its input: ``collector if i in wanted else None``.

    Empty when there is none, when anything else is done with the wanted layers in a loop, or when forward would not
    return ``(hidden, captured)``.
    """
    found = ""
    for loop, index in _loops(forward):
        named = {k.arg: _resolved(k.value, loop) for call in calls(loop) for k in call.keywords if k.arg in COLLECTORS}
        fitting = [name for name, value in named.items() if _asks(value, index) and _plainly(value, forward)]
        tests = [node for node in ast.walk(loop) if isinstance(node, ast.Compare) and _mentions_wanted(node)]
        if not tests:
            continue
        if len(fitting) != 1 or len(tests) != 1 or found:
            return ""
        found = fitting[0] or ""
    return found if _returns_at_most_pairs(forward) else ""


def adds_in_loop(forward: ast.FunctionDef) -> str:
    """How SGLang's own capture computes the state before a wanted layer, in the loop.

    Returns:
        ``pair`` for hidden + residual, ``single`` for hidden alone, empty for anything else.
    """
    kinds = set()
    for loop, index in _loops(forward):
        tests = [node for node in ast.walk(loop) if isinstance(node, ast.Compare) and _mentions_wanted(node)]
        if not tests:
            continue
        ifs = [node for node in ast.walk(loop) if isinstance(node, ast.If) and _is_wanted(node.test, index)]
        if len(tests) != 1 or len(ifs) != 1:
            return ""
        kinds.add(_appended(ifs[0]))
    return kinds.pop() if len(kinds) == 1 else ""


def uses_norm(forward: ast.FunctionDef) -> bool:
    """The last norm is called, or handed to what calls it."""
    return any(is_of_self(part, "norm") for call in calls(forward) for part in (call.func, *call.args))


def prepares_once(layer: Code) -> bool:
    """The layer's input goes through ``self.layer_communicator.prepare_attn``, once."""
    return len(_of(layer, COMMUNICATOR, PREPARES)) == 1


def enters_once(layer: Code) -> bool:
    """The layer's input goes through ``self.attn_boundary.prepare``, once, into a plainly added residual stream."""
    declared = {k.arg for m in layer.methods.values() for call in calls(m) for k in call.keywords}
    return len(_of(layer, BOUNDARY, ("prepare",))) == 1 and not declared & OTHER_RESIDUALS


def passes_on(layer: Code, collector: str) -> bool:
    """The layer hands the collector to what completes its input."""
    entries = [*_of(layer, COMMUNICATOR, PREPARES[1:]), *_of(layer, BOUNDARY, ("prepare",))]
    values = [k.value for entry in entries for k in entry.keywords]
    return len(entries) == 1 and any(_names(value, collector) for value in values)


def starts_with_sum(layer: Code) -> bool:
    """The layer's input is ``hidden_states + residual`` (residual None before the first), and nothing is left to it."""
    if DEFERRED & layer.attributes() or not {"hidden_states", "residual"} <= set(parameters(layer.forward)):
        return False
    first = next((node for node in layer.forward.body if isinstance(node, ast.If)), None)
    before = layer.forward.body[: layer.forward.body.index(first)] if first else []
    if first is None or any("residual" in _targets(node) for node in before):
        return False
    asks = isinstance(first.test, ast.Compare) and _says(first.test.left, "residual")
    none = asks and isinstance(first.test, ast.Compare) and isinstance(first.test.ops[0], ast.Is)
    return none and any(_normalises_pair(node) for node in first.orelse)


def starts_with_hidden(layer: Code) -> bool:
    """The layer's input is ``hidden_states`` alone, and nothing is left to it."""
    taken = parameters(layer.forward)
    return "hidden_states" in taken and "residual" not in taken and not DEFERRED & layer.attributes()


def loops_once(forward: ast.FunctionDef) -> bool:
    """It goes over ``self.layers`` in loops that are not inside each other: no layer runs twice."""
    loops = [node for node in ast.walk(forward) if isinstance(node, (ast.For, ast.While)) and _has_layers(node)]
    return bool(loops) and not any(inner in loops for loop in loops for inner in ast.walk(loop) if inner is not loop)


def returns_pairs(function: ast.FunctionDef) -> bool:
    """Every return gives two values, or what a method of the same name gives; at least one gives two values."""
    values = [node.value for node in own_nodes(function) if isinstance(node, ast.Return)]
    pairs = [value for value in values if isinstance(value, ast.Tuple) and len(value.elts) == 2]
    others = [value for value in values if value not in pairs]
    same = [v for v in others if isinstance(v, ast.Call) and getattr(v.func, "attr", "") == function.name]
    return bool(pairs) and len(same) == len(others)


def _loops(forward: ast.FunctionDef) -> Iterator[tuple[ast.For, str]]:
    """Loops over layers by their number, with the number's name."""
    for node in ast.walk(forward):
        if not isinstance(node, ast.For):
            continue
        target, over = node.target, node.iter
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Name):
            if over.func.id == "range" and isinstance(target, ast.Name):
                yield node, target.id
            elif over.func.id == "enumerate" and isinstance(target, ast.Tuple) and "layers" in attributes(over):
                first = target.elts[0]
                if isinstance(first, ast.Name):
                    yield node, first.id


def _mentions_wanted(node: ast.Compare) -> bool:
    return any(is_of_self(part, WANTED) for part in node.comparators)


def _is_wanted(test: ast.AST, index: str) -> bool:
    """``index in self.layers_to_capture``"""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.In)
        and _says(test.left, index)
        and _mentions_wanted(test)
    )


def _asks(value: ast.AST, index: str) -> bool:
    return isinstance(value, ast.IfExp) and _is_wanted(value.test, index) and _is_none(value.orelse)


def _plainly(value: ast.AST, forward: ast.FunctionDef) -> bool:
    """What is handed over is a collection of forward's or its ``capture``, not a function that computes something."""
    assert isinstance(value, ast.IfExp)
    if isinstance(value.body, ast.Attribute):
        return value.body.attr == "capture" and isinstance(value.body.value, ast.Name)
    inner = {node.name for node in ast.walk(forward) if isinstance(node, ast.FunctionDef)}
    return isinstance(value.body, ast.Name) and value.body.id not in inner


def _has_layers(node: ast.AST) -> bool:
    return any(is_of_self(part, "layers") for part in ast.walk(node))


def _resolved(value: ast.expr, loop: ast.For) -> ast.expr:
    """What a local name stands for, where the loop assigns it once."""
    if not isinstance(value, ast.Name):
        return value
    given = [node.value for node in ast.walk(loop) if isinstance(node, ast.Assign) and value.id in _targets(node)]
    return given[0] if len(given) == 1 else value


def _returns_at_most_pairs(forward: ast.FunctionDef) -> bool:
    values = [node.value for node in own_nodes(forward) if isinstance(node, ast.Return)]
    tuples = [part for value in values if value for part in ast.walk(value) if isinstance(part, ast.Tuple)]
    return bool(tuples) and all(len(one.elts) == 2 for one in tuples)


def _appended(node: ast.If) -> str:
    if len(node.body) != 1 or node.orelse or not isinstance(node.body[0], ast.Expr):
        return ""
    call = node.body[0].value
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append"):
        return ""
    value: ast.AST = call.args[0]
    if isinstance(value, ast.IfExp):
        value = value.body
    if _says(value, "hidden_states"):
        return "single"
    parts: list[ast.expr] = []
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        parts = [value.left, value.right]
    elif isinstance(value, ast.Call) and _says(value.func, "snapshot"):
        parts = value.args
    return "pair" if len(parts) == 2 and _says(parts[0], "hidden_states") and _says(parts[1], "residual") else ""


def _of(layer: Code, owner: str, names: tuple[str, ...]) -> list[ast.Call]:
    """The calls of ``self.<owner>.<one of names>`` in its forward."""
    return [
        call
        for call in calls(layer.forward)
        if isinstance(call.func, ast.Attribute) and call.func.attr in names and is_of_self(call.func.value, owner)
    ]


def _normalises_pair(node: ast.AST) -> bool:
    """``hidden_states, residual = self.<norm>(hidden_states, residual, ...)``"""
    if not isinstance(node, ast.Assign) or _targets(node) != {"hidden_states", "residual"}:
        return False
    value = node.value
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    return len(value.args) >= 2 and _says(value.args[0], "hidden_states") and _says(value.args[1], "residual")


def _targets(node: ast.AST) -> set[str]:
    whole = node.targets if isinstance(node, ast.Assign) else []
    return {part.id for target in whole for part in ast.walk(target) if isinstance(part, ast.Name)}


def _names(value: ast.AST, name: str) -> bool:
    """It is the name, or asks a mapping for it: ``kwargs.get("name")``."""
    return any(_says(node, name) or (isinstance(node, ast.Constant) and node.value == name) for node in ast.walk(value))


def _says(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
