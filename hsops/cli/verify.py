"""``hsops verify``: are the dumps here what they claim to be?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hsops.cli.wiring import Session, run
from hsops.render.console import Outcome


def verify(
    ctx: typer.Context,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Where hsops fetch put the dumps.")],
    prompts: Annotated[
        str, typer.Option(metavar="FILE", help="Every prompt must have a dump of exactly its tokens.")
    ] = "",
) -> None:
    """Check files, checksums, shapes, token ids and values of every dump; exit 1 on any fault."""
    run(ctx, "verify", lambda session: check(session, folder, prompts))


def check(session: Session, folder: str, prompts: str = "") -> Outcome:
    """The command's body, for playbooks too. Needs no inventory."""
    from hsops.core.prompts import read_prompts
    from hsops.render import verify as render
    from hsops.verify.verify import verify as verify_

    read = read_prompts(Path(prompts).expanduser()) if prompts else None
    verified = verify_(Path(folder).expanduser(), read, session.console.emit)
    return render.outcome(verified, folder=folder)
