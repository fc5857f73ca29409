"""``hsops extract``: prompts in, one dump each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hsops.cli.wiring import Session, run
from hsops.render.console import Outcome

CONCURRENCY = 16
ROOM_S = 300.0


def extract(
    ctx: typer.Context,
    prompts: Annotated[str, typer.Argument(metavar="PROMPTS", help="JSONL: id, and input_ids or text.")],
    *,
    server: Annotated[str, typer.Option("--server", "-s", metavar="NAME", help="Which server (the default).")] = "",
    limit: Annotated[int, typer.Option(min=0, help="Only the first N prompts; 0 means all.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Prompts under way at once.")] = CONCURRENCY,
    room_wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long the host may be full before it ends.")
    ] = ROOM_S,
) -> None:
    """Send each prompt that has no dump yet and wait for its line in the manifest. Run it again to continue."""

    def body(session: Session) -> Outcome:
        return drive(session, server or None, prompts, limit=limit, concurrency=concurrency, room_wait=room_wait)

    run(ctx, "extract", body)


def drive(
    session: Session,
    server: str | None,
    prompts: str,
    *,
    limit: int = 0,
    concurrency: int = CONCURRENCY,
    room_wait: float = ROOM_S,
) -> Outcome:
    """The command's body, for playbooks too."""
    from hsops.core.prompts import read_prompts
    from hsops.extract.extract import Job
    from hsops.extract.extract import extract as extract_
    from hsops.extract.plan import capture_of
    from hsops.remote.dumps import folder_of
    from hsops.render import extract as render

    spec = session.server(server)
    host, path = session.inventory.hosts[spec.host], Path(prompts).expanduser()
    capture = capture_of(spec, session.inventory.patches)
    read = read_prompts(path)
    job = Job(spec.name, folder_of(host, spec), path, read[: limit or None], capture, concurrency, room_wait)
    return render.outcome(extract_(session.agent(host), job, session.console.emit), server=spec.name, host=host.name)
