"""``make models-table``: docs/reference/models.md, which model of which SGLang is captured and how.

Read from SGLang's published wheels, none of which is installed or run. What was also run against a reference is told by
docs/reference/models-run.csv.
"""

from __future__ import annotations

import csv
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hsops.core.events import Event
from hsops.core.versions import numbers
from hsops.deploy.models import MODELS, Sources
from hsops.lab import wheels
from hsops.payload.hsops_hs_dump import strategy
from hsops.payload.hsops_hs_dump.shape import BOUNDARY, COMMUNICATOR, WANTED
from hsops.payload.hsops_hs_dump.wiring import DRAFT

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
RUNS = FOLDER / "models-run.csv"
VERSIONS = [f"0.5.{n}" for n in range(numbers(strategy.FIRST)[-1], numbers(strategy.LAST)[-1] + 1)]
LETTERS = {
    strategy.LAYERS_TO_CAPTURE.name: "N",
    strategy.PREPARE_ATTN.name: "P",
    strategy.RESIDUAL_STREAM.name: "S",
    strategy.LAYER_INPUT.name: "I",
    "": "-",
}
HEAD = """\
# Models

Made by `make models-table` from the wheels of SGLang {first} to {last}; not edited by hand. One row for each trunk (the
class with the loop over the layers) that has SGLang's own capture, a layer communicator or a stage boundary.

**N** `layers-to-capture` · **P** `prepare-attn` · **S** `residual-stream` · **I** `layer-input` (see
[hs-dump](hs-dump.md#strategies)) · **-** a shape that is not known: refused at launch, with what was looked for ·
blank: not in that release. **Bold** was also run: a real server with tiny random weights, on the CPU in float32, each
state held against Hugging Face transformers (`models-run.csv`). What is not bold is known by its code
alone.

A release of SGLang may choose a layer's communicator or boundary only when the server starts, by its arguments; the
rank then looks at the object it really has, and the hello file has the last word.
"""


@dataclass
class Row:
    """One trunk over the releases."""

    architectures: set[str] = field(default_factory=set)
    cells: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    ours: bool = False


def main() -> None:
    """Write the page."""
    rows: dict[tuple[str, str], Row] = defaultdict(Row)
    for version in VERSIONS:
        with zipfile.ZipFile(wheels.ensure(version, Path(sys.executable), _tell)) as wheel:
            _read(version, wheel, rows)
    (FOLDER / "models.md").write_text("\n".join(_page(rows)) + "\n")


def head() -> str:
    """The page's words, above the table."""
    return HEAD.format(first=VERSIONS[0], last=VERSIONS[-1])


def runs() -> set[tuple[str, str]]:
    """(release, architecture) of what was run and was right."""
    with RUNS.open(newline="") as file:
        return {(line["sglang"], line["architecture"]) for line in csv.DictReader(file)}


def _tell(_event: Event) -> None:
    """A download's progress is pip's own business here."""


def _read(version: str, wheel: zipfile.ZipFile, rows: dict[tuple[str, str], Row]) -> None:
    names = set(wheel.namelist())
    sources = Sources(lambda path: wheel.read(path).decode("utf-8", "replace") if path in names else None)
    modules = sorted(n for n in names if n.startswith(f"{MODELS}/") and n.endswith(".py"))
    for module in modules:
        for architecture in sources.entries(module):
            if DRAFT.search(architecture):
                continue
            for trunk in sources.trunks(module, architecture):
                _add(version, sources, trunk, architecture, rows)


def _add(
    version: str, sources: Sources, trunk: tuple[str, str], architecture: str, rows: dict[tuple[str, str], Row]
) -> None:
    path, name = trunk
    row = rows[path.removeprefix(f"{MODELS}/").removesuffix(".py"), name]
    row.architectures.add(architecture)
    if version not in row.cells:
        choice = sources.trunk(path, name).choice
        row.cells[version] = choice.strategy
        row.missing[version] = choice.missing
        layers = {name for layer in sources.layers(path, name) for name in sources.code(*layer).attributes()}
        row.ours |= bool(choice.strategy) or WANTED in sources.code(path, name).attributes()
        row.ours |= bool({COMMUNICATOR, BOUNDARY} & layers)


def _page(rows: dict[tuple[str, str], Row]) -> Iterator[str]:
    ran = runs()
    yield head()
    yield f"| trunk | {' | '.join(v.removeprefix('0.5.') for v in VERSIONS)} | architectures |"
    yield "|---|" + "---|" * (len(VERSIONS) + 1)
    shown = {key: row for key, row in sorted(rows.items()) if row.ours}
    for (module, name), row in shown.items():
        cells = [_cell(row, version, ran) for version in VERSIONS]
        yield f"| `{name}` ({module}) | {' | '.join(cells)} | {', '.join(sorted(row.architectures))} |"
    yield "\n## Why not\n\nWhat was looked for and not found, in the newest release that has the trunk.\n"
    yield "| trunk | release | not found |"
    yield "|---|---|---|"
    for (module, name), row in shown.items():
        refused = [version for version in VERSIONS if row.cells.get(version) == ""]
        if refused:
            yield f"| `{name}` ({module}) | {refused[-1]} | {row.missing[refused[-1]]} |"


def _cell(row: Row, version: str, ran: set[tuple[str, str]]) -> str:
    if version not in row.cells:
        return ""
    letter = LETTERS[row.cells[version]]
    return f"**{letter}**" if any((version, one) in ran for one in row.architectures) else letter


if __name__ == "__main__":
    main()
