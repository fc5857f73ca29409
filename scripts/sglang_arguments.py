"""What SGLang's releases call the arguments that hsops speaks of.

    python scripts/sglang_arguments.py RELEASES > tests/cases/sglang-arguments.json

RELEASES holds a folder a release, each an unpacked wheel: RELEASES/0.5.9/sglang/srt/server_args.py ...
(``pip download sglang==V --no-deps``, then ``python -m zipfile -e``). Reads syntax trees; imports nothing of SGLang.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hsops.core.versions import numbers
from hsops.payload.hsops_hs_dump.contract import FUSION_OFF
from hsops.payload.hsops_hs_dump.rules import GRAPH_CONFIG, GRAPHS_SAID, RULES, TOLD

EXTRA_FLAGS = ("enforce-disable-flashinfer-allreduce-fusion", "forward-hooks")
EXTRA_ARGUMENTS = ("cuda_graph_config", "disable_prefill_cuda_graph", "disable_piecewise_cuda_graph",
                   "enable_piecewise_cuda_graph")  # fmt: skip


@dataclass
class Release:
    """One release: the fields of ServerArgs, and the flags of its command line without dashes."""

    arguments: set[str] = field(default_factory=set)
    flags: set[str] = field(default_factory=set)


def read(folder: Path) -> Release:
    """The names in one unpacked release."""
    found, srt = Release(), folder / "sglang" / "srt"
    for path in (srt / "server_args.py", *sorted((srt / "arg_groups" / "fields").glob("*.py"))):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for owner in tree.body:
            if isinstance(owner, ast.ClassDef) and (owner.name == "ServerArgs" or path.parent.name == "fields"):
                for node in owner.body:
                    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                        found.arguments.add(node.target.id)
                        found.flags |= set(_annotated(node.target.id, node.annotation))
        found.flags |= set(_added(tree))
    return found


def _annotated(name: str, annotation: ast.expr) -> Iterator[str]:
    """Flags of ``name: A[type, Arg(...)]``: SGLang makes them of the field, since 0.5.14."""
    if not (isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple)):
        return
    if not (isinstance(annotation.value, ast.Name) and annotation.value.id in ("A", "Annotated")):
        return
    metas = [node for node in annotation.slice.elts[1:] if isinstance(node, ast.Call)]
    given = {k.arg: k.value for call in metas for k in call.keywords}
    if "no_cli" in given:
        return
    flag = str(ast.literal_eval(given["cli_name"])).lstrip("-") if "cli_name" in given else name.replace("_", "-")
    yield flag
    if "action" in given and "BooleanOptionalAction" in ast.unparse(given["action"]):
        yield f"no-{flag}"
    yield from (flag.lstrip("-") for flag in ast.literal_eval(given.get("aliases", ast.List([]))))


def _added(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for word in node.args:
                if isinstance(word, ast.Constant) and isinstance(word.value, str):
                    yield word.value.lstrip("-")


def spans(names: list[str], releases: dict[str, set[str]]) -> dict[str, list[str]]:
    """``name -> [first, last]`` release that has it; names of no release are left out."""
    found = {}
    for name in names:
        there = [version for version, known in releases.items() if name in known]
        if there:
            order = list(releases)
            assert there == order[order.index(there[0]) : order.index(there[-1]) + 1], f"{name} comes and goes"
            found[name] = [there[0], there[-1]]
    return found


def main(folder: Path) -> None:
    """Write the record."""
    versions = sorted((p.name for p in folder.iterdir() if (p / "sglang").is_dir()), key=numbers)
    releases = {version: read(folder / version) for version in versions}
    arguments = sorted({r.argument for r in RULES} | {*TOLD, *FUSION_OFF, *EXTRA_ARGUMENTS})
    flags = {r.flag for r in RULES} | {flag for r in RULES for flag in r.flags} | set(EXTRA_FLAGS)
    flags |= {g.flag for g in (*GRAPHS_SAID, GRAPH_CONFIG)}
    flags |= {word.lstrip("-") for r in RULES for word in r.instead.split() if word.startswith("--")}
    record = {
        "releases": [versions[0], versions[-1]],
        "arguments": spans(arguments, {v: r.arguments for v, r in releases.items()}),
        "flags": spans(sorted(flags), {v: r.flags for v, r in releases.items()}),
    }
    text = json.dumps(record, indent=1).replace("[\n   ", "[").replace(',\n   "', ', "').replace("\n  ]", "]")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
