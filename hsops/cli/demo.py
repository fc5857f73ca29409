"""``hsops demo``: the whole story on the lab."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hsops.cli.wiring import Session, run
from hsops.render.console import Outcome


def demo(
    ctx: typer.Context,
    samples: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="How many prompts.")] = 64,
    sglang: Annotated[str, typer.Option(metavar="V", help="SGLang's version; the lab's default without it.")] = "",
    home: Annotated[str, typer.Option(metavar="DIR", help="The demo's own lab; removed at the end.")] = "~/.hsops-demo",
) -> None:
    """Deploy, launch, extract, fetch and verify on a real SGLang here, then catch and name a hang. Needs minutes."""
    run(ctx, "demo", lambda session: _demo(session, samples, sglang or None, Path(home).expanduser()))


def _demo(session: Session, samples: int, sglang: str | None, home: Path) -> Outcome:
    from hsops.demo.story import Stage, tell
    from hsops.demo.table import ending

    end = tell(Stage(home, sglang, samples, aside=session.options.json), session.console.emit)
    return Outcome(asdict(end), ending(end))
