"""``hsops lab``: a practice host on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hsops.cli.help import Command, Group
from hsops.cli.options import everywhere
from hsops.cli.wiring import Session, run
from hsops.render.console import Outcome

app = typer.Typer(
    cls=Group, no_args_is_help=True, help="A practice host here: real SGLang on the CPU behind a loopback sshd."
)

FAULTS = (  # a test keeps it true
    "busy-wait, busy-wait-warmup, slow-load, sleepy-load, compile, v1-patch, stopped-rank, killed-rank, futex-wait, "
    "lost-collective"
)
MODELS = "deepseek, kimi, deepseek-wide"  # so it does this one
Home = Annotated[Path | None, typer.Option("--home", metavar="DIR", help="The lab's folder [~/.hsops-lab].")]


def up(
    ctx: typer.Context,
    *,
    home: Home = None,
    sglang: Annotated[
        str | None, typer.Option("--sglang", metavar="VERSION", help="Its SGLang (as it is, else 0.5.9).")
    ] = None,
    fault: Annotated[
        str | None, typer.Option("--fault", metavar="NAME", help=f"Break it, to practise: {FAULTS}. Without: no fault.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help=f"What it serves: {MODELS} (as it is, else deepseek).")
    ] = None,
    tp: Annotated[
        int | None,
        typer.Option("--tp", metavar="N", min=1, max=8, help="Ranks of its server: 1, 2, 4, 8 (as it is, else 2)."),
    ] = None,
) -> None:
    """Bring the lab up; the first time pip builds 1.5 GB of packages."""

    def body(session: Session) -> Outcome:
        from hsops import lab
        from hsops.render.lab import up_data, up_lines

        made = lab.up(home, sglang=sglang, fault=fault, tp=tp, model=model, emit=session.console.emit)
        return Outcome(up_data(made), up_lines(made))

    run(ctx, "lab up", body)


def down(
    ctx: typer.Context,
    home: Home = None,
    purge: Annotated[bool, typer.Option("--purge", help="Remove the lab's folder too.")] = False,
) -> None:
    """End every process of the lab."""

    def body(_session: Session) -> Outcome:
        from hsops import lab
        from hsops.render.lab import down_lines

        ended = lab.down(home, purge=purge)
        return Outcome({"ended": [{"pid": p.pid, "title": p.title} for p in ended]}, down_lines(ended))

    run(ctx, "lab down", body)


def status(ctx: typer.Context, home: Home = None) -> None:
    """What the lab is and what runs in it."""

    def body(_session: Session) -> Outcome:
        from hsops import lab
        from hsops.render.lab import status_data, status_lines

        found = lab.status(home)
        return Outcome(status_data(found), status_lines(found))

    run(ctx, "lab status", body)


app.command("up", cls=Command)(everywhere(up))
app.command("down", cls=Command)(everywhere(down))
app.command("status", cls=Command)(everywhere(status))
