"""``--help`` on a terminal of 80 columns."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from hsops.cli.app import app

ROOT: Any = typer.main.get_command(app)


def walk(group: Any, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command, with those that only hold others."""
    below = getattr(group, "commands", {})
    return [words, *(found for name, command in below.items() for found in walk(command, (*words, name)))]


@pytest.mark.parametrize("words", walk(ROOT), ids=" ".join)
def test_help_fits_and_says_everything(words: tuple[str, ...]) -> None:
    """No line is longer, no word is cut; no type stands where nobody types it; every option has a sentence."""
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"})

    rows = done.output.splitlines()
    assert done.exit_code == 0, done.output
    assert [row for row in rows if len(row) > 80 or "…" in row] == []
    assert re.findall(r"<(?:str|bool|int|float|list|[a-z|]+)[^>]*>", done.output) == []
    assert len(rows) < 70, "three screens of help are read by nobody"


@pytest.mark.parametrize("words", walk(ROOT), ids=" ".join)
def test_every_option_has_its_sentence(words: tuple[str, ...]) -> None:
    """That ends in a full stop, or in a bracket with what holds without it."""
    command = ROOT
    for word in words:
        command = command.commands[word]
    params = [p for p in command.get_params(typer.Context(command)) if p.name != "help"]

    assert [p.name for p in params if not re.search(r"[.\])]$", getattr(p, "help", "") or "")] == []
    assert (command.help or "").strip()
