"""Every command that README and docs/ name is one that hsops takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from hsops.cli.app import app
from tests.documents import PAGES, ROOT, blocks, commands

HSOPS: Any = typer.main.get_command(app)
AT_ONCE = {"--help", "-h", "--version", "--install-completion", "--show-completion"}  # they act while they are parsed
NOT_OURS = ("...", "[", "COMMAND", "FEATURE")  # a line that shows a form, not a command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_one_that_hsops_takes(page: Path) -> None:
    """Its name, its options and their values are parsed by the command line itself; nothing is run."""
    faults = [
        f"{place}: hsops {' '.join(words)}: {fault}" for place, words in commands(page) if (fault := judge(words))
    ]

    assert faults == []


def test_the_pages_have_commands_and_blocks_that_are_run() -> None:
    """Or the test above would hold of nothing."""
    assert sum(1 for page in PAGES for _ in commands(page)) > 200
    assert {block.where for page in PAGES for block in blocks(page)} >= {"", "here", "lab"}
    assert judge(["fetch", "--fro", "x"]).startswith("No such option: --fro") and judge(["fetsh"])
    assert judge(["logs", "--lines", "many"]) and not judge(["--host", "a", "fetch", "--to", "x"])


def judge(words: list[str]) -> str:
    """What is wrong with a command line; empty when nothing is."""
    if not words or AT_ONCE & set(words) or any(mark in word for word in words for mark in NOT_OURS):
        return ""
    command, context, rest = HSOPS, None, list(words)
    try:
        while True:
            if not rest and hasattr(command, "commands"):
                return ""  # `hsops lab`: it would show its help
            context = command.make_context("hsops", rest, parent=context)
            rest = [*getattr(context, "_protected_args", ()), *context.args]
            if not hasattr(command, "commands"):
                return ""
            _, command, rest = command.resolve_command(context, rest)
    except Exception as error:
        said = str(error.format_message()) if hasattr(error, "format_message") else repr(error)
        named = said.startswith("Missing ") or said.endswith("requires an argument.")
        return "" if named else said  # `hsops verify` names the command, `hsops diagnose --save` its option
