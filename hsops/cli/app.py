"""The composition root: every command of ``hsops``, in the order of a day's work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer

from hsops import __version__
from hsops.cli import (
    audit,
    baseline,
    demo,
    deploy,
    diagnose,
    doctor,
    explain,
    export,
    extract,
    fetch,
    init,
    lab,
    launch,
    logs,
    playbook,
    status,
    stop,
    unlock,
    verify,
)
from hsops.cli.help import Command, Group
from hsops.cli.options import everywhere
from hsops.core.errors import HsopsError, UsageError
from hsops.render import streams
from hsops.render.console import Console

_CommandLineError: Any = typer.BadParameter.__mro__[1]  # click's UsageError, which Typer has a copy of

app = typer.Typer(
    name="hsops",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Deploy hidden-state capture into SGLang over SSH, launch it, know why it hangs, bring the dumps home.",
)

COMMANDS: dict[str, Callable[..., Any]] = {
    "init": init.init,
    "doctor": doctor.doctor,
    "deploy": deploy.deploy,
    "launch": launch.launch,
    "status": status.status,
    "logs": logs.logs,
    "stop": stop.stop,
    "unlock": unlock.unlock,
    "audit": audit.audit,
    "diagnose": diagnose.diagnose,
    "explain": explain.explain,
    "extract": extract.extract,
    "fetch": fetch.fetch,
    "verify": verify.verify,
    "export": export.export,
    "run": playbook.run,
    "demo": demo.demo,
}
for name, body in COMMANDS.items():
    app.command(name, cls=Command)(everywhere(body))
app.add_typer(baseline.app, name="baseline")
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
    try:
        if "--json" not in sys.argv[1:]:
            app(prog_name="hsops")  # completion is written for this name, however it was started
        sys.exit(app(prog_name="hsops", standalone_mode=False))  # what it returns is the exit code of ``typer.Exit``
    except _CommandLineError as error:
        command = _command(error.ctx)
        console = Console(command or "hsops", as_json=True, color=False)
        fix = " ".join(filter(None, ("hsops", command, "--help")))
        sys.exit(console.error(UsageError(error.format_message(), fix=fix)))
    except HsopsError as error:  # of an option that acts while it is parsed
        sys.exit(Console("hsops", as_json="--json" in sys.argv[1:], color=False).error(error))
    except OSError as error:  # help and the version: whatever a command prints has its own door
        sys.exit(Console("hsops", as_json=False, color=False).error(streams.unwritten(sys.stdout, error)))


def _command(ctx: Any) -> str:
    """The command's name, ``lab up`` for example; empty when it is not known yet."""
    names: list[str] = []
    while ctx and ctx.parent:
        names.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return " ".join(names)
