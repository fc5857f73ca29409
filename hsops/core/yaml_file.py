"""YAML with places: a document as plain values plus the line and column of every key and value."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import BaseModel, ValidationError

from hsops.core.errors import ConfigError, Fault

Path_ = tuple[Hashable, ...]
ARM = "[kind]"  # begins the tags of a union: no key of a file can be taken for one
LARGEST = 100_000  # values of one file; a few lines of aliases of aliases make billions
_UNUSABLE = re.compile("[\0\ud800-\udfff]")  # no path, command line or UTF-8 file can hold these


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file.

    Args:
        file: its name as the user gave it.
        value: plain Python values.
        places: path of keys and indices -> (line, column) of the value, from 1.
        keys: path of a mapping's entry -> (line, column) of its key.
    """

    file: str
    value: Any
    places: dict[Path_, tuple[int, int]]
    keys: dict[Path_, tuple[int, int]]

    def fault(self, path: Sequence[Hashable], message: str, *, at_key: bool = False) -> Fault:
        """A fault at ``path``, or at the nearest parent that the file has."""
        where = ".".join(f"[{p}]" if isinstance(p, int) else str(p) for p in path).replace(".[", "[")
        table = self.keys if at_key else self.places
        for end in range(len(path), -1, -1):
            if place := table.get(tuple(path[:end])) or self.places.get(tuple(path[:end])):
                return Fault(self.file, *place, where, message)
        return Fault(self.file, 0, 0, where, message)


def read(path: Path, *, what: str, fix: str = "") -> Document:
    """Read and parse one file.

    Args:
        path: the file.
        what: what it is, for messages ("inventory").
        fix: what to do when it is missing.

    Raises:
        ConfigError: no such file, not text, a syntax fault, or a key given twice.
    """
    name = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        _fail(name, f"no {what} here", fix=fix)
    except (OSError, UnicodeDecodeError) as error:
        _fail(name, f"cannot be read: {error}")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise ConfigError([Fault(name, *place, "", f"YAML syntax: {error.problem or error.context}")]) from None
    except yaml.YAMLError as error:
        _fail(name, f"YAML syntax: {error}")
    except RecursionError:
        _fail(name, "nested too deeply")
    reader = _Reader(name)
    value = reader.build(node, ()) if node is not None else {}
    if reader.faults:
        raise ConfigError(reader.faults)
    return Document(name, value, reader.places, reader.keys)


def validate(document: Document, model: type[BaseModel], value: Any, *, at: Path_ = ()) -> tuple[Any, list[Fault]]:
    """``value`` as ``model``; or None and every fault, each with its place in ``document``.

    Args:
        document: where places come from.
        model: what it should be.
        value: the whole value, or the part of it that stands ``at`` a path.
        at: that path.
    """
    try:
        return model.model_validate(value), []
    except ValidationError as error:
        return None, _faults(document, model, error, at)


def suggest(word: str, known: Sequence[str]) -> str:
    """``; did you mean 'x'?`` or nothing."""
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


class _Reader:
    """Walks the node graph once: values, places and double keys."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.places: dict[Path_, tuple[int, int]] = {}
        self.keys: dict[Path_, tuple[int, int]] = {}
        self.faults: list[Fault] = []
        self._loader = yaml.SafeLoader("")
        self._open: set[int] = set()  # nodes being built: an alias to one of them is a cycle

    def build(self, node: yaml.Node, path: Path_) -> Any:
        if len(self.places) > LARGEST:
            _fail(self.file, f"more than {LARGEST:,} values; are there aliases of aliases?")
        self.places[path] = _mark(node)
        if id(node) in self._open:
            self.faults.append(Fault(self.file, *_mark(node), _dotted(path), "an alias to its own parent"))
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.build(child, (*path, i)) for i, child in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self._open.discard(id(node))

    def _scalar(self, node: yaml.Node, path: Path_) -> Any:
        try:
            value = self._loader.construct_object(node)
            if problem := _unusable(value):
                self.faults.append(Fault(self.file, *_mark(node), _dotted(path), problem))
            return value if not problem else None
        except Exception as error:  # noqa: BLE001 - `!!int ""`: PyYAML takes a tag's word for it and fails anyhow
            said = str(error) if isinstance(error, yaml.YAMLError | ValueError) else ""
            said = said or f"{node.value!r} is not what its tag !!{node.tag.rpartition(':')[2]} says"
            problem = getattr(error, "problem", None) or said
            self.faults.append(Fault(self.file, *_mark(node), _dotted(path), problem))
            return None

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[Any, Any]:
        built: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node, path) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                self.faults.append(
                    Fault(self.file, *_mark(key_node), _dotted(path), f"a key must be text, got {key!r}; quote it")
                )
                continue
            if key in built:
                line = self.keys[(*path, key)][0]
                self.faults.append(
                    Fault(self.file, *_mark(key_node), _dotted((*path, key)), f"given twice; first at line {line}")
                )
                continue
            self.keys[(*path, key)] = _mark(key_node)
            built[key] = self.build(value_node, (*path, key))
        return built


def _unusable(value: Any) -> str:
    """Why nothing that the value is for could take it; empty when it can."""
    if isinstance(value, int) and abs(value) >= 2**63:
        return "the number is too large"
    if isinstance(value, str) and _UNUSABLE.search(value):
        return "the text has a NUL or half a character in it"
    return ""


def _mark(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _dotted(path: Path_) -> str:
    return ".".join(str(p) for p in path)


def _fail(file: str, message: str, *, fix: str = "") -> NoReturn:
    raise ConfigError([Fault(file, 0, 0, "", message)], fix=fix) from None


def _faults(document: Document, model: type[BaseModel], error: ValidationError, at: Path_) -> list[Fault]:
    found: dict[Path_, Fault] = {}
    for problem in error.errors(include_url=False):
        inner = tuple(p for p in problem["loc"] if _is_real(document, p, problem["loc"]))
        path = (*at, *inner)
        if path in found:  # a union reports each arm; the first is the one that the field is mostly used with
            continue
        if _counts_only_valid_entries(problem):
            continue
        if problem["type"] == "extra_forbidden":
            known = _fields_at(model, [p for p in problem["loc"][:-1] if p in inner or str(p).startswith(ARM)])
            found[path] = document.fault(path, f"unknown key{suggest(str(path[-1]), known)}", at_key=True)
        elif problem["type"] == "missing":
            found[path] = document.fault(path[:-1], f"{path[-1]!r} is missing", at_key=True)
        else:
            found[path] = document.fault(path, _message(problem))
    return list(found.values())


def _counts_only_valid_entries(problem: Any) -> bool:
    """pydantic calls a list too short when enough is there and is at fault, which its entries' own faults say."""
    return problem["type"] == "too_short" and bool(len(problem["input"]) >= problem["ctx"]["min_length"])


def _is_real(document: Document, part: Hashable, loc: Sequence[Hashable]) -> bool:
    """pydantic adds names of union arms and ``[key]`` to a location; keep what the file or the models have."""
    if isinstance(part, int):
        return True
    text = str(part)
    arms = ("int", "str", "bool", "float", "literal[", "constrained-", "function-", "list[", "[key]", "tuple[", ARM)
    return not (text.startswith(arms) and part not in {k[-1] for k in document.keys if k}) or part == loc[0]


def _message(problem: Any) -> str:
    got = problem["input"]
    shown = repr(got) if isinstance(got, str | int | float | bool | None) else type(got).__name__
    expected = {
        "int_type": "an integer",
        "int_parsing": "an integer",
        "string_type": "text",
        "bool_type": "true or false",
        "dict_type": "a mapping",
        "model_type": "a mapping",
        "list_type": "a list",
        "tuple_type": "a list",
        "float_type": "a number",
        "float_parsing": "a number",
    }.get(problem["type"])
    if expected:
        return f"expected {expected}, got {shown}"
    if problem["type"] == "too_short":
        return f"needs at least {problem['ctx']['min_length']} entry"
    text = str(problem["msg"]).removeprefix("Value error, ")
    return text if repr(got) in text else f"{text[0].lower()}{text[1:]}, got {shown}"


def _fields_at(model: type[BaseModel], path: Sequence[Hashable]) -> list[str]:
    """The keys that a mapping at ``path`` may have."""
    current: Any = model
    for part in path:
        if _is_model(current):
            field = current.model_fields.get(str(part))
            current = field.annotation if field else None
        elif str(part).startswith(ARM):
            current = _arm(current, str(part))
        else:  # dict[Name, Model], tuple[Model, ...]: any key leads to the last argument
            arguments = [a for a in getattr(current, "__args__", ()) if a is not Ellipsis]
            current = arguments[-1] if arguments else None
    return [field.alias or name for name, field in current.model_fields.items()] if _is_model(current) else []


def _arm(union: Any, tag: str) -> Any:
    """The member of a tagged union that ``tag`` is the tag of."""
    members = getattr(getattr(union, "__origin__", union), "__args__", ())
    for member in members:
        if any(getattr(mark, "tag", None) == tag for mark in getattr(member, "__metadata__", ())):
            return member.__origin__
    return None


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
