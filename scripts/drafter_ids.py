"""Hold the payload's table of layer ids against releases of SGLang: ``python scripts/drafter_ids.py FOLDER...``.

A folder is an unpacked wheel, named by its version (``0.5.23/sglang/srt/models``). The code of every
``set_eagle3_layers_to_capture`` is run by itself, on an object that accepts anything, with the ids that the table
gives; what it asks the model to capture must be the boundaries. Setters that only hand the ids on are left out.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from hsops.payload.hsops_hs_dump.drafter_ids import SGLANG, drafter_ids

LAYERS = 61
BOUNDARIES = ((3, 31, 59), (2, 30, 58), (1, 29, 57), (0, 2, 60), (5,))
SETTER = "set_eagle3_layers_to_capture"


class Anything:
    """A model as a setter sees it; remembers the layers that it was told to capture."""

    def __init__(self, asked: list[list[int]]) -> None:
        self.__dict__["_asked"] = asked

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == SETTER:
            return lambda ids: self._asked.append(list(ids))
        return LAYERS if name.startswith("num_") else Anything(self._asked)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "layers_to_capture":
            self._asked.append(list(value))
        else:
            self.__dict__[name] = value

    def __call__(self, *_args: Any) -> Anything:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True


def main(folders: list[str]) -> int:
    """Every setter of every release; returns how many disagree."""
    held, wrong, unknown = 0, 0, set[str]()
    for folder in map(Path, folders):
        for module, setter in setters(folder / "sglang" / "srt" / "models"):
            if module not in SGLANG:
                unknown.add(module)
                continue
            for boundaries in BOUNDARIES:
                ids = drafter_ids(boundaries, "sglang", folder.name, module)
                if ids is None:
                    continue
                held += 1
                if (asked := captured(setter, ids)) != list(boundaries):
                    wrong += 1
                    say(f"{folder.name} {module}: ids {list(ids)} capture {asked}, not {list(boundaries)}")
    say(f"{held} held, {wrong} wrong; not in the table: {', '.join(sorted(unknown))}")
    return wrong


def setters(models: Path) -> Iterator[tuple[str, ast.FunctionDef]]:
    """(module, setter) of the classes that serve; those of inner models take boundaries as they are."""
    for path in sorted(models.glob("*.py")):
        if SETTER in (text := path.read_text(encoding="utf-8")):
            for found in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)):
                if found.name == SETTER and found.args.args[1].arg == "layer_ids":
                    yield path.stem, found


def captured(setter: ast.FunctionDef, ids: tuple[int, ...]) -> list[int]:
    """What it asks for; the last word counts."""
    asked: list[list[int]] = []
    code = f"from __future__ import annotations\n{ast.unparse(setter)}"
    names = {name: Anything(asked) for name in ("get_pp_group", "get_parallel", "logger")}
    exec(code, names)  # noqa: S102 - published code of SGLang, one assignment long
    names[SETTER](Anything(asked), list(ids))
    return asked[-1] if asked else []


def say(line: str) -> None:
    """One line for whoever runs this."""
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
