"""``make docs``: the pages of docs/reference that are the code's own tables. A test fails when one drifts."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from hsops.cli.app import app
from scripts import figures, schemas, tables

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
EVERYWHERE = "Everywhere"


def commands() -> str:
    """docs/reference/commands.md: what ``--help`` says, each command with all of its words."""
    root: Any = typer.main.get_command(app)
    lines = ["# Commands", "", f"{root.help}", "", "`hsops COMMAND --help` says the same; `hsops --install-completion`",
             "completes commands and options in your shell.", "", "## Options of every command", "",
             "Before or after the command's name.", ""]  # fmt: skip
    context = typer.Context(root, info_name="hsops")
    lines += [_option(p) for p in root.get_params(context) if p.name != "help"]
    for words, command in _walk(root, ("hsops",)):
        lines += ["", *_command(words, command)]
    return "\n".join(lines) + "\n"


def _walk(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield (*words, name), command
        if hasattr(command, "commands"):
            yield from _walk(command, (*words, name))


def _command(words: tuple[str, ...], command: Any) -> Iterator[str]:
    yield f"{'#' * len(words)} `{' '.join(words)}`"
    yield ""
    yield from (command.help or "").strip().splitlines()
    if hasattr(command, "commands"):
        return
    context = typer.Context(command, info_name=words[-1])
    params = [p for p in command.get_params(context) if getattr(p, "rich_help_panel", "") != EVERYWHERE]
    arguments = [p for p in params if p.param_type_name == "argument"]
    shown = " ".join(_shown(p) for p in arguments)
    yield ""
    yield f"```console\n$ {' '.join(filter(None, (*words, '[OPTIONS]', shown)))}\n```"
    options = [p for p in params if p.param_type_name == "option" and p.name != "help"]
    yield from ["", *(_option(param) for param in [*arguments, *options])] if params[1:] else []


def _shown(param: Any) -> str:
    word = param.metavar or param.name.upper()
    return (word if param.required else f"[{word}]") + ("..." if param.nargs != 1 else "")


def _option(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"* `{param.metavar or param.name.upper()}`: {_text(param.help)}"
    names = ", ".join(sorted(param.opts, key=len))
    value = f" {param.metavar}" if param.metavar else ""
    needed = " Required." if param.required else ""
    default = param.default
    told = f" [default: {getattr(default, 'value', default)}]" if _worth_telling(param, default) else ""
    bounds = param._get_number_range_help_str() if hasattr(param, "_get_number_range_help_str") else ""  # noqa: SLF001
    limits = f" [{bounds}]" if bounds else ""
    return f"* `{names}{value}`: {_text(param.help)}{needed}{told}{limits}"


def _worth_telling(param: Any, default: object) -> bool:
    return bool(param.show_default) and not callable(default) and default not in (None, False, "", ())


def _text(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").strip()


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands,
    "inventory.md": schemas.inventory,
    "playbook.md": schemas.playbook,
    "errors.md": schemas.error_types,
    "events.md": schemas.events,
    "exit-codes.md": tables.exit_codes,
    "verdicts.md": tables.verdicts,
    "milestones.md": tables.milestones,
    "hs-dump.md": tables.hs_dump,
    "../../README.md": figures.readme,
}


def main() -> None:
    """Write every page that is not what it should be; with ``--check`` only name them."""
    stale = [name for name, page in PAGES.items() if not _is(FOLDER / name, page())]
    for name in stale if "--check" not in sys.argv else ():
        (FOLDER / name).write_text(PAGES[name](), encoding="utf-8")
    print("\n".join(name.rpartition("../")[2] for name in stale) or "nothing to do")  # noqa: T201


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    main()
