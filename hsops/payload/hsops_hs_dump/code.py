"""A class as its source text says: which methods it has, its own and inherited ones. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """What a strategy looks at.

    Args:
        name: the class's, for messages.
        methods: by name, as the order of its base classes resolves them.
        owners: by name, the class that defines the method.
    """

    name: str
    methods: Mapping[str, ast.FunctionDef]
    owners: Mapping[str, str]

    @property
    def forward(self) -> ast.FunctionDef:
        """Its forward; an empty function where it has none."""
        return self.methods.get("forward") or _NOTHING

    def attributes(self) -> set[str]:
        """Names of all attributes that its methods mention."""
        return {name for method in self.methods.values() for name in attributes(method)}


def code(name: str, lineage: Iterable[ast.ClassDef]) -> Code:
    """A class from the definitions of itself and its bases, nearest first."""
    methods: dict[str, ast.FunctionDef] = {}
    owners: dict[str, str] = {}
    for definition in lineage:
        own = {node.name: node for node in definition.body if isinstance(node, ast.FunctionDef)}
        for method, node in own.items():
            if method not in methods:
                methods[method], owners[method] = node, definition.name
    return Code(name, methods, owners)


def top_level(tree: ast.Module) -> Iterator[ast.AST]:
    """A module's statements in their order, also those below ``if`` and ``try``."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.ExceptHandler)):
            waiting[:0] = ast.iter_child_nodes(node)


def class_in(tree: ast.Module, name: str) -> ast.ClassDef | None:
    """The last definition of a class at a module's top level."""
    found = [node for node in top_level(tree) if isinstance(node, ast.ClassDef) and node.name == name]
    return found[-1] if found else None


def parameters(function: ast.FunctionDef) -> list[str]:
    """Names of its parameters."""
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def attributes(tree: ast.AST) -> set[str]:
    """Names of the attributes in it, whosever they are."""
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls in it."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def is_of_self(node: ast.AST, name: str) -> bool:
    """It reads ``self.<name>``."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def _nothing() -> ast.FunctionDef:
    node = ast.parse("def forward(): ...").body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


_NOTHING = _nothing()
