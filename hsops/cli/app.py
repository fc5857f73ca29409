"""The composition root: every command of ``hsops``, in the order of a day's work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from hsops import __version__
from hsops.cli import (
    audit,
    demo,
    deploy,
    diagnose,
    doctor,
    extract,
    fetch,
    lab,
    launch,
    logs,
    playbook,
    status,
    stop,
    unlock,
    verify,
)
from hsops.cli.options import everywhere
from hsops.render import streams

app = typer.Typer(
    name="hsops",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Deploy hidden-state capture into SGLang over SSH, launch it, know why it hangs, bring the dumps home.",
)

COMMANDS: dict[str, Callable[..., Any]] = {
    "doctor": doctor.doctor,
    "deploy": deploy.deploy,
    "launch": launch.launch,
    "status": status.status,
    "logs": logs.logs,
    "stop": stop.stop,
    "unlock": unlock.unlock,
    "audit": audit.audit,
    "diagnose": diagnose.diagnose,
    "extract": extract.extract,
    "fetch": fetch.fetch,
    "verify": verify.verify,
    "run": playbook.run,
    "demo": demo.demo,
}
for name, body in COMMANDS.items():
    app.command(name)(everywhere(body))
app.add_typer(lab.app, name="lab")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"hsops {__version__}")
        raise typer.Exit


@app.callback()
@everywhere
def root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """The application itself only keeps the global options."""


def main() -> None:
    """Entry point of the ``hsops`` script."""
    streams.prepare()
    app()
