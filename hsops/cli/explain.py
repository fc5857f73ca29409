"""``hsops explain``: what a verdict means."""

from __future__ import annotations

from typing import Annotated

import typer

from hsops.cli.wiring import Session, run
from hsops.render.console import Outcome


def explain(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="CLASS", help="A class of diagnose; without it all are listed.")] = "",
) -> None:
    """What a verdict of diagnose means, what to do, what would confirm it, and by which words it is told."""

    def body(_session: Session) -> Outcome:
        from hsops.diagnose.knowledge import about
        from hsops.diagnose.taxonomy import FAMILIES
        from hsops.render.explain import lines, listing

        if not name:
            return Outcome({"families": {f: dict(c) for f, c in FAMILIES.items()}}, list(listing(FAMILIES)))
        known = about(name)
        return Outcome(known.as_json(), list(lines(known)))

    run(ctx, "explain", body)
