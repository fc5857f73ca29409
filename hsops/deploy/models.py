"""The model classes of an SGLang by its sources alone: which trunk an architecture has, of which layers. Pure.

What a running server tells by its objects has to be read here: base classes and imports are followed, and a trunk's
layers are the classes that its constructor names.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from hsops.payload.hsops_hs_dump.code import Code, code, parameters, top_level
from hsops.payload.hsops_hs_dump.shape import COMMUNICATOR
from hsops.payload.hsops_hs_dump.strategy import COMMUNICATOR_CLASS, COMMUNICATOR_FILE, Choice, choose

MODELS = "sglang/srt/models"
_COMMUNICATORS = COMMUNICATOR_FILE.removesuffix(".py")  # and those beside it: communicator_mhc.py
_BUILDERS = ("init", "build", "make", "create")  # in the names of methods that build parts
_DEPTH = 4  # a wrapper of a wrapper of a model with a trunk


@dataclass(frozen=True, slots=True)
class Found:
    """A trunk.

    Args:
        name: of its class.
        path: of the module that defines it.
        choice: the strategy that fits.
    """

    name: str
    path: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class _Module:
    """What a module defines and imports, by name."""

    classes: Mapping[str, ast.ClassDef]
    imports: Mapping[str, tuple[str, str]]
    tables: Mapping[str, ast.Dict]
    entries: tuple[str, ...]


class Sources:
    """Modules of one SGLang.

    Args:
        read: the text of a file by its path relative to site-packages; None when there is none.
    """

    def __init__(self, read: Callable[[str], str | None]) -> None:
        self._module = cache(lambda path: _parse(read(path) or "", path))
        self.code = cache(self._code)
        self.lineage = cache(self._lineage)
        self.trunks = cache(self._trunks)

    def classes(self, path: str) -> list[str]:
        """The classes that a module defines."""
        return list(self._module(path).classes)

    def entries(self, path: str) -> tuple[str, ...]:
        """The architectures that a module registers (``EntryClass``)."""
        return self._module(path).entries

    def where(self, path: str, name: str) -> tuple[str, str] | None:
        """The module and name under which a class is defined that ``path`` calls ``name``; None: none that is ours."""
        for _ in range(_DEPTH):
            module = self._module(path)
            if name in module.classes:
                return path, name
            if name not in module.imports:
                return None
            path, name = module.imports[name]
        return None

    def layers(self, path: str, name: str) -> list[tuple[str, str]]:
        """The layer classes that a trunk's constructor names, or its nearest base's that names some."""
        for module, definition in self.lineage(path, name):
            named = [at for word in self._words(module, definition) if (at := self.where(module, word))]
            layers = [at for at in dict.fromkeys(named) if _is_layer(self.code(*at))]
            if layers:
                return layers
        return []

    def trunk(self, path: str, name: str) -> Found:
        """A trunk with the strategy for it."""
        layers = [self.code(*at) for at in self.layers(path, name)]
        communicators = [self.code(*at) for layer in self.layers(path, name) for at in self._communicators(*layer)]
        return Found(name, path, choose(self.code(path, name), layers, communicators))

    def _trunks(self, path: str, name: str, depth: int = _DEPTH) -> list[tuple[str, str]]:
        """The trunks in what the class ``name`` builds, itself included, as (path, name)."""
        at = self.where(path, name)
        if not at or depth == 0:
            return []
        if is_trunk(self.code(*at)):
            return [at]
        for module, definition in self.lineage(*at):
            words = dict.fromkeys(self._words(module, definition))
            inner = [trunk for word in words for trunk in self.trunks(module, word, depth - 1)]
            if inner:
                return list(dict.fromkeys(inner))
        return []

    def _communicators(self, path: str, name: str) -> list[tuple[str, str]]:
        """The communicator classes that a layer may have; the common one where its constructor names it, or none."""
        if COMMUNICATOR not in self.code(path, name).attributes():
            return []
        for module, definition in self.lineage(path, name):
            words = [word for word in self._words(module, definition) if word.endswith(COMMUNICATOR_CLASS)]
            found = list(dict.fromkeys(at for word in words if (at := self.where(module, word))))
            if found:
                return [at for at in found if at[1] == COMMUNICATOR_CLASS] or found
        return [(COMMUNICATOR_FILE, COMMUNICATOR_CLASS)]

    def _code(self, path: str, name: str) -> Code:
        """A class as ``choose`` wants it."""
        return code(name, [definition for _, definition in self.lineage(path, name)])

    def _lineage(self, path: str, name: str) -> list[tuple[str, ast.ClassDef]]:
        """A class and its bases, nearest first, each with its module."""
        at = self.where(path, name)
        if not at:
            return []
        definition = self._module(at[0]).classes[at[1]]
        found = [(at[0], definition)]
        for base in definition.bases:
            if isinstance(base, ast.Name) and base.id != name:
                found += [pair for pair in self.lineage(at[0], base.id) if pair not in found]
        return found

    def _words(self, path: str, definition: ast.ClassDef) -> Iterator[str]:
        """Names in what builds a class's parts and in its attributes; a table of the module gives its entries."""
        tables = self._module(path).tables
        for node in definition.body:
            if isinstance(node, ast.FunctionDef) and not any(word in node.name for word in _BUILDERS):
                continue
            for word in _built(node):
                yield word
                if word in tables:
                    yield from _built(tables[word])


def is_trunk(found: Code) -> bool:
    """It has a forward that takes ``forward_batch``, and ``self.layers``."""
    return "forward_batch" in parameters(found.forward) and "layers" in _self_attributes(found.forward)


def _is_layer(found: Code) -> bool:
    takes = parameters(found.forward)
    return "hidden_states" in takes and ("forward_batch" in takes or found.forward.args.kwarg is not None)


def _built(tree: ast.AST) -> Iterator[str]:
    """The names in it, without those that something is only compared to (``isinstance``)."""
    waiting = [tree]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Name):
            yield node.id
        if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"):
            waiting += ast.iter_child_nodes(node)


def _self_attributes(tree: ast.AST) -> set[str]:
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def _parse(text: str, path: str) -> _Module:
    """A module; an empty one where it does not parse."""
    try:
        tree = ast.parse(text.lstrip("\ufeff"))
    except SyntaxError:
        tree = ast.Module([], [])
    nodes = list(top_level(tree))
    assigned = [
        (target.id, node.value)
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    entry = dict(assigned).get("EntryClass")
    values = entry.elts if isinstance(entry, ast.List | ast.Tuple) else [entry]
    return _Module(
        classes={node.name: node for node in nodes if isinstance(node, ast.ClassDef)},
        imports={name: at for node in nodes if isinstance(node, ast.ImportFrom) for name, at in _imports(node, path)},
        tables={name: value for name, value in assigned if isinstance(value, ast.Dict)},
        entries=tuple(value.id for value in values if isinstance(value, ast.Name)),
    )


def _imports(node: ast.ImportFrom, path: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Name here -> (path, name there), of what comes from SGLang's models and communicators."""
    folder = path.rsplit("/", node.level)[0] + "/" if node.level else ""
    module = folder + (node.module or "").replace(".", "/")
    if f"{module}.py".startswith((f"{MODELS}/", _COMMUNICATORS)):
        yield from ((alias.asname or alias.name, (f"{module}.py", alias.name)) for alias in node.names)
