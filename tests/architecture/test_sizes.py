"""A function fits on a screen: what is longer is mostly two things."""

from __future__ import annotations

import ast
from pathlib import Path

LONGEST = 44  # lines, with its docstring; 40 is what to aim at
ROOT = Path(__file__).parents[2]


def test_no_function_is_longer_than_a_screen() -> None:
    """Of the package itself; a test may tell a long story."""
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in sorted((ROOT / "hsops").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= LONGEST
    ]

    assert long == []
