"""``args-look``: SGLang's command line as its code declares it, read as syntax trees: importing it takes seconds."""

import ast
import contextlib
import glob
import os
from typing import Any

from hsops.agent import facts

_NO_VALUE = ("store_true", "store_false", "BooleanOptionalAction", "DeprecatedStoreTrueAction", "DeprecatedAction",
             "DeprecatedStoreConstAction")  # fmt: skip
_ONE_VALUE = ("", "store", "append", "extend", "DeprecatedAliasStoreAction")
_TYPES = ("int", "float", "str")
_GROWS = ("extend", "append", "add", "update")


def look(_params: "dict[str, Any]") -> "dict[str, Any]":
    """``options``: see ``read``; empty when there is no SGLang, or its command line is declared in no known way."""
    root = facts.sglang()["root"]
    return {"options": read(os.path.join(root, "srt")) if root else []}


def read(srt: str) -> "list[dict[str, Any]]":
    """The options of SGLang's parser, declared by ``add_argument`` or, from 0.5.14 on, by annotated fields.

    ``names``; ``dest``; ``nargs``: 0, 1, ``?``, ``*``, ``+``, a number, or None when the code does not tell; ``type``:
    int, float, str, or "" for a function of its own; ``choices`` or None; ``open``: code elsewhere may add to these;
    ``deprecated``: what SGLang says of it, or ""; ``removed``: it ends the start. Empty ones are left out.
    """
    groups = os.path.join(srt, "arg_groups")
    wanted = ("choices.py", os.path.join("fields", "*.py"))
    paths = [path for name in wanted for path in sorted(glob.glob(os.path.join(glob.escape(groups), name)))]
    trees = []
    for path in (os.path.join(srt, "server_args.py"), *paths):
        with contextlib.suppress(OSError, SyntaxError, ValueError), open(path, encoding="utf-8") as file:
            trees.append(ast.parse(file.read()))
    return _Reader(trees).options


class _Reader:
    """What the trees declare, and the lists that they name."""

    def __init__(self, trees: "list[ast.Module]") -> None:
        self.lists: dict[str, ast.expr | None] = {}
        self.grows: set[str] = set()
        self.options: list[dict[str, Any]] = []
        nodes = [node for tree in trees for node in ast.walk(tree)]
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                self.lists[name] = None if name in self.lists else node.value
            elif isinstance(node, ast.Attribute) and node.attr in _GROWS and isinstance(node.value, ast.Name):
                self.grows.add(node.value.id)
        for node in nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                self._call(node)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self._field(node.target.id, node.annotation)

    def _call(self, node: ast.Call) -> None:
        names = [word for word in map(_constant, node.args) if isinstance(word, str) and word.startswith("-")]
        given = {word.arg or "": word.value for word in node.keywords}
        if names:
            kind = _name(given["type"]) if "type" in given else "str"
            self._option(names, str(_constant(given.get("dest")) or ""), given, kind if kind in _TYPES else "")

    def _field(self, name: str, annotation: ast.expr) -> None:
        """``name: A[type, "help"]`` or ``A[type, Arg(...)]``; anything else is no flag."""
        if not isinstance(annotation, ast.Subscript) or _name(annotation.value) not in ("A", "Annotated"):
            return
        first, *metas = getattr(annotation.slice, "elts", [None])
        found = next((m for m in metas if isinstance(_constant(m), str) or _name(getattr(m, "func", m)) == "Arg"), None)
        if first is None or found is None:
            return
        given = {word.arg or "": word.value for word in getattr(found, "keywords", [])}
        if "no_cli" in given:
            return
        flag = str(_constant(given.get("cli_name")) or f"--{name.replace('_', '-')}")
        names = [flag, *(self._values(given.get("aliases"), set()) or ())]
        kind = _unwrapped(first)
        if "action" not in given:
            owner = _name(kind.value) if isinstance(kind, ast.Subscript) else ""
            if owner == "Literal" and isinstance(kind, ast.Subscript):
                given = {"choices": kind.slice, **given}
                first_choice = (self._values(given["choices"], set()) or [""])[0]
                kind = ast.Name(id=type(first_choice).__name__)
            elif owner.lower() == "list" and isinstance(kind, ast.Subscript) and "type_parser" not in given:
                given, kind = {"nargs": ast.Constant("+"), **given}, kind.slice
            elif _name(kind) == "bool":
                given = {"action": ast.Constant("store_true"), **given}
        typed = "" if "type_parser" in given else _name(kind) if _name(kind) in _TYPES else "str"
        self._option(names, name, given, typed)

    def _option(self, names: "list[str]", dest: str, given: "dict[str, ast.expr]", kind: str) -> None:
        action = given.get("action")
        how = str(_constant(action) or _name(action))
        if how == "BooleanOptionalAction":
            names += [f"--no-{name[2:]}" for name in names]
        nargs = _constant(given["nargs"]) if "nargs" in given else 0 if how in _NO_VALUE else 1
        if how not in _NO_VALUE + _ONE_VALUE and "nargs" not in given:
            nargs = None
        elif nargs is None and isinstance(given.get("nargs"), ast.Constant):
            nargs = 1
        grown: set[str] = set()
        choices = self._values(given.get("choices"), grown)
        said = str(_constant(given.get("error_message")) or _help(given.get("help")))
        old = how.startswith("Deprecated") or "eprecated" in said[:14]
        long = next((name for name in names if name.startswith("--")), names[0])
        option = {
            "names": names,
            "dest": dest or long.lstrip("-").replace("-", "_"),
            "nargs": nargs,
            "type": kind,
            "choices": choices,
            "open": bool(grown & self.grows),
            "deprecated": said[:200] if old else "",
            "removed": how == "DeprecatedAction" and "error_message" in given,
        }
        self.options.append(
            {key: value for key, value in option.items() if value not in ("", None) and value is not False}
        )

    def _values(self, node: "ast.expr | None", names: "set[str]") -> "list[Any] | None":
        """The constants of a list that is spelt out, here or under a name, which ``names`` gets; None otherwise."""
        if isinstance(node, ast.Name):
            names.add(node.id)
            held = self.lists.pop(node.id, None)  # meanwhile: a list that is made of itself is not spelt out
            found = self._values(held, names)
            self.lists[node.id] = held
            return found
        if isinstance(node, ast.Call) and _name(node.func) in ("list", "set", "tuple", "sorted") and node.args:
            return self._values(node.args[0], names)
        if isinstance(node, ast.BinOp):
            left, right = self._values(node.left, names), self._values(node.right, names)
            return None if left is None or right is None else [*left, *right]
        if isinstance(node, ast.Constant):
            return [node.value] if node.value is not None else None
        if not isinstance(node, ast.List | ast.Tuple | ast.Set):
            return None
        found = [one.value for one in node.elts if isinstance(one, ast.Constant)]
        return found if len(found) == len(node.elts) else None


def _name(node: "ast.expr | None") -> str:
    return str(getattr(node, "id", "") or getattr(node, "attr", ""))


def _constant(node: "ast.expr | None") -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def _help(node: "ast.expr | None") -> str:
    """The first piece of a text that may be made of several."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    return str(_constant(first) or "")


def _unwrapped(kind: ast.expr) -> ast.expr:
    """X of ``Optional[X]``, ``Union[X, None]`` and ``X | None``."""
    if isinstance(kind, ast.Subscript) and _name(kind.value) == "Optional":
        return kind.slice
    parts: list[ast.expr] = []
    if isinstance(kind, ast.Subscript) and _name(kind.value) == "Union":
        parts = list(getattr(kind.slice, "elts", []))
    elif isinstance(kind, ast.BinOp):
        parts = [kind.left, kind.right]
    rest = [part for part in parts if not (isinstance(part, ast.Constant) and part.value is None)]
    return rest[0] if len(parts) > len(rest) == 1 else kind
