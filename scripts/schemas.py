"""Pages made of the models and events: what inventory.yaml, playbooks and ``--json`` lines may hold."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

import typer

import hsops
from hsops.cli.app import app
from hsops.core import errors
from hsops.core.events import Event, Picture, kebab
from hsops.core.inventory import Inventory
from hsops.playbook.model import STEPS, Playbook

INVENTORY = """\
# inventory.yaml

Every key that there is, made from the code by `make docs`. The commented [inventory.yaml](../../inventory.yaml) says
more of each, and is what `hsops init` writes. What is not listed is a fault, told with its line and the nearest key.

`hosts`, `servers` and `patches` hold entries by a name of your choice. `defaults: {host: {...}, server: {...}}` gives
values to every host or server that has none of its own. A path on the host is absolute, or begins with `~/`.
"""
PLAYBOOK = """\
# Playbooks

What `hsops run PLAYBOOK` reads, made from the code by `make docs`. A step is the name of a command, or
`{name: {option: value}}`; its options are those of the [command](commands.md) of the same name. `{NAME}` in a value is
`vars.NAME`, or what `--set NAME=VALUE` says. [playbooks/extract.yaml](../../playbooks/extract.yaml) is one.
"""
ORDER = ("HostSpec", "ServerSpec", "RestartSpec", "HsDumpPatch", "DiffPatch", "FilesPatch", "ScriptPatch")
WORDS = {  # of keys that the models leave to their names
    "hosts": "machines",
    "groups": "hosts by the name of a group: `--group NAME`",
    "servers": "what is launched",
    "patches": "what `hsops deploy` puts in; of a server: which of them, by name",
    "host": "one of `hosts`",
    "tp": "tensor-parallel ranks",
    "port": "HTTP, on the host's 127.0.0.1; `auto`: a free one",
    "kind": "which kind of patch it is",
    "vars": "defaults of `{NAME}`; `--set NAME=VALUE` wins",
    "on_failure": "look at the server when a step fails",
    "dir": "a folder that fetch, or extract's `drain`, wrote",
    "drain": "a folder here: dumps are fetched meanwhile, and removed on the host once they are safe here",
}
EVENTS = """\
# Event lines of `--json`

Made from the code by `make docs`. While a command works it writes these, one JSON object a line, before its
[envelope](exit-codes.md#the-json-envelope); a reader takes what it knows and leaves the rest. Each also has `schema`,
`command` and `event`. Keys in brackets may be left out or null.
"""


ERRORS = """\
# Types of errors

`errors[].type` of the JSON [envelope](exit-codes.md#the-json-envelope), made from the code by `make docs`. The exit
code follows from the type; a program decides by either, never by the words of `message`.

| type | exit code | |
|---|---|---|
"""


def inventory() -> str:
    """docs/reference/inventory.md: every model below ``Inventory``, in the order in which they are met."""
    schema = Inventory.model_json_schema()
    lines = [INVENTORY, "## The file", "", *_table(schema, {"defaults": ("see above", "")})]
    known = [name for name in schema["$defs"] if name != "_UnknownPatch" and "properties" in schema["$defs"][name]]
    for name in sorted(known, key=lambda name: (*ORDER, name).index(name)):
        definition = schema["$defs"][name]
        lines += ["", f"## {_title(name)}", "", _plain(definition.get("description", "")), "", *_table(definition)]
    return "\n".join(lines) + "\n"


def error_types() -> str:
    """docs/reference/errors.md: the tree of ``hsops.core.errors``, flat."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HsopsError)]
    rows = sorted((kind.exit_code, kind.__name__, _plain((kind.__doc__ or "").split("\n")[0])) for kind in kinds)
    return ERRORS + "".join(f"| `{name}` | {code} | {said.replace('|', '/')} |\n" for code, name, said in rows)


def playbook() -> str:
    """docs/reference/playbook.md."""
    lines = [PLAYBOOK, "## The file", "", *_table(Playbook.model_json_schema()), ""]
    for name, step in STEPS.items():
        lines += [f"## Step `{name}`", "", _plain(step.__doc__ or ""), ""]
        lines += [*_table(step.model_json_schema(), said=_options(name)), ""] if step.model_fields else []
    return "\n".join(lines).rstrip() + "\n"


def events() -> str:
    """docs/reference/events.md: every kind of event that any command emits."""
    lines = [EVENTS]
    for name, kind in sorted(event_kinds().items()):
        lines += [*_event(name, kind), ""]
    return "\n".join(lines).rstrip() + "\n"


def event_kinds() -> dict[str, type[Event]]:
    """By the word that stands in ``event`` of a line; ``Trace`` is no event, a ``Picture`` is for terminals."""
    for package in ("cli", "demo", "launch", "playbook", "extract", "fetch", "lab", "deploy", "verify"):
        for module in pkgutil.iter_modules([f"{hsops.__path__[0]}/{package}"], f"hsops.{package}."):
            importlib.import_module(module.name)
    kinds = {kebab(kind.__name__): kind for kind in _below(Event)}
    return {name: kind for name, kind in kinds.items() if name != "trace" and not issubclass(kind, Picture)}


def _below(kind: type[Event]) -> Iterator[type[Event]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _event(name: str, kind: type[Event]) -> Iterator[str]:
    told, *_ = re.split(r"\n\s*\n\s*Args:", (kind.__doc__ or "").strip())
    yield from (f"## `{name}`", "", _plain(told), "")
    shown = [f"`{f.name}`" if _must(f) else f"[`{f.name}`]" for f in fields(kind)]
    yield "Keys: " + (", ".join(shown) or "none") + "."
    yield from ["", *(f"* {name}: {words}" for name, words in _args(kind).items())] if _args(kind) else ()


def _must(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _args(kind: type[Event]) -> Mapping[str, str]:
    """What the docstring says of each field."""
    _, _, told = (kind.__doc__ or "").partition("Args:\n")
    found = re.findall(r"^ {8}(\w[\w, ]*): ((?:.|\n(?! {8}\w))*)", told, re.MULTILINE)
    return {", ".join(f"`{n}`" for n in names.split(", ")): _plain(words) for names, words in found}


def _plain(text: str) -> str:
    """A docstring's words as Markdown."""
    return re.sub(r"\s+", " ", text).replace("``", "`").strip()


def _options(command: str) -> dict[str, str]:
    """What the command of a step says of its options."""
    root: Any = typer.main.get_command(app)
    return {p.name.removesuffix("_"): p.help or "" for p in root.commands[command].params}


def _table(
    schema: Mapping[str, Any], more: Mapping[str, tuple[str, str]] = {}, said: Mapping[str, str] = {}
) -> Iterator[str]:
    yield "| key | value | default | |"
    yield "|---|---|---|---|"
    required = schema.get("required", [])
    for key, value in schema.get("properties", {}).items():
        if key == "name" and schema.get("title") != "Playbook":  # it is the key above
            continue
        default = "**required**" if key in required else _default(value)
        yield f"| `{key}` | {_kind(value)} | {default} | {_cell(value, key, said)} |"
    for key, (kind, default) in more.items():
        yield f"| `{key}` | {kind} | {default} | |"


def _default(value: Mapping[str, Any]) -> str:
    default = value.get("default")
    return (
        "" if default in (None, [], {}, ()) else f"`{str(default).lower() if isinstance(default, bool) else default}`"
    )


def _kind(value: Mapping[str, Any]) -> str:
    """A type in words."""
    if "$ref" in value:
        title = _title(value["$ref"].rpartition("/")[2])
        return f"[{title}](#{title.lower().replace(' ', '-')})"
    if among := value.get("anyOf") or value.get("oneOf"):
        kinds = [_kind(one) for one in among if one.get("type") != "null" and "_Unknown" not in str(one)]
        return " or ".join(dict.fromkeys(kinds))
    if fixed := value.get("enum") or ([value["const"]] if "const" in value else []):
        return " or ".join(f"`{one}`" for one in fixed)
    return _many(value) or _bounds(value)


def _many(value: Mapping[str, Any]) -> str:
    """A list or a mapping; empty when it is neither."""
    if value.get("type") == "array":
        items = value.get("items", {})
        return "list of these" if items.get("anyOf") else f"list of {_kind(items)}" if items else "list"
    return f"by name: {_kind(value.get('additionalProperties', {}))}" if value.get("type") == "object" else ""


def _bounds(value: Mapping[str, Any]) -> str:
    words = {"string": "text", "number": "number", "integer": "integer", "boolean": "`true` or `false`"}
    low = value.get("minimum", value.get("exclusiveMinimum"))
    low_word = "above " if "exclusiveMinimum" in value else ""
    high = value.get("maximum")
    span = f", {low_word}{low}" if low is not None else ""
    end = f" to {high}" if high is not None else " or more" if low is not None and not low_word else ""
    return words.get(value.get("type", ""), "anything") + span + end


def _title(name: str) -> str:
    return {
        "HostSpec": "A host", "ServerSpec": "A server", "RestartSpec": "Restart", "HsDumpPatch": "Patch hs-dump",
        "DiffPatch": "Patch diff", "FilesPatch": "Patch files", "ScriptPatch": "Patch script",
    }.get(name, name.removesuffix("Spec"))  # fmt: skip


def _cell(value: Mapping[str, Any], key: str, said: Mapping[str, str]) -> str:
    return str(value.get("description") or said.get(key) or WORDS.get(key, "")).replace("|", "\\|")
