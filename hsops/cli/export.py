"""``hsops export``: dumps as the data set that a trainer reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hsops.cli.wiring import Session, run
from hsops.render.console import Outcome


class Trainer(str, Enum):
    """Whose format."""

    specforge = "specforge"
    speculators = "speculators"


class Mask(str, Enum):
    """Where the loss mask comes from."""

    prompts = "prompts"
    all = "all"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for."""

    folder: str
    to: str
    trainer: str
    prompts: str = ""
    mask: str = "prompts"
    engine: str = ""
    trunk: str = ""
    copy: bool = False
    partial: bool = False


def export(
    ctx: typer.Context,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Where hsops fetch put the dumps.")],
    *,
    trainer: Annotated[
        Trainer,
        typer.Option(
            "--format", metavar="specforge|speculators", help="Who is to read it (speculators: vLLM's files too)."
        ),
    ],
    to: Annotated[str, typer.Option(metavar="DIR", help="Where the data set goes.")],
    prompts: Annotated[
        str, typer.Option(metavar="PROMPTS", help="These, in this order, with their loss_mask; without: all, by id.")
    ] = "",
    mask: Annotated[
        Mask, typer.Option(metavar="prompts|all", help="What to learn from: the prompts' loss_mask, or all tokens.")
    ] = Mask.prompts,
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="Write the drafter's layer ids for: sglang==VERSION or vllm.")
    ] = "",
    trunk: Annotated[
        str, typer.Option(metavar="MODULE", help="With --engine: the model's file in SGLang, if the dumps name none.")
    ] = "",
    copy: Annotated[bool, typer.Option("--copy", help="No hard links: nothing shared with the dumps.")] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Leave out prompts without a dump and faulty dumps, rather than fail.")
    ] = False,
) -> None:
    """Check every dump and write the data set; run it again to continue, or to follow what was fetched since.

    Exit 1 when a dump is faulty or missing, and no data set then.
    """

    wish = Wish(folder, to, trainer.value, prompts, mask.value, engine, trunk, copy, partial)
    run(ctx, "export", lambda session: make(session, wish))


def make(session: Session, wish: Wish) -> Outcome:
    """The command's body, for playbooks too. Needs no inventory."""
    from hsops.core.prompt_files import read_prompts
    from hsops.export.export import export as export_
    from hsops.export.formats import SpecForge, Speculators
    from hsops.export.making import Job
    from hsops.export.rows import masked
    from hsops.render import export as render

    given = read_prompts(wish.prompts, session.console.emit) if wish.prompts else None
    read = masked(given, wish.prompts, wish.mask)
    job = Job(Path(wish.folder).expanduser(), Path(wish.to).expanduser(), read, wish.engine, wish.trunk, wish.partial)
    kind = SpecForge() if wish.trainer == Trainer.specforge else Speculators(copy=wish.copy)
    return render.outcome(export_(job, kind, session.console.emit), folder=wish.folder, to=wish.to)
