"""``hsops extract``: prompts in, one dump each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hsops.cli.drain import INTERRUPTED, drained, home
from hsops.cli.wiring import Session, run
from hsops.core.errors import UsageError
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.core.inventory import ServerSpec
    from hsops.extract.place import Finding, Place
    from hsops.remote.dumps import Lost

CONCURRENCY = 16
ROOM_S = 300.0
DRAINED_ROOM_S = 1800.0  # a fetch that goes on is told when it fails; one large dump over a slow line may take long


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for; ``servers``: each may be several with commas between."""

    prompts: str
    servers: tuple[str, ...] = ()
    limit: int = 0
    concurrency: int = CONCURRENCY
    relaunch: int = 0
    room_wait: float | None = None
    failures: Path | None = None
    tokenized: Path | None = None
    drain: str = ""
    remake: bool = False


def extract(
    ctx: typer.Context,
    prompts: Annotated[
        str, typer.Argument(metavar="PROMPTS", help="JSONL (also packed, - for stdin) or a dataset on disk.")
    ],
    *,
    server: Annotated[
        list[str] | None,
        typer.Option("--server", "-s", metavar="NAME", help="Which server (the default); A,B or repeated: they share."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Only the first N prompts; 0 means all.")] = 0,
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, max=1024, help="Prompts under way at once, at each server.")
    ] = CONCURRENCY,
    relaunch: Annotated[
        int, typer.Option(min=0, max=100, metavar="N", help="Start a server that dies or hangs again, N times at most.")
    ] = 0,
    room_wait: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="How long a host may be full before it ends (300; with --drain 1800)."
        ),
    ] = None,
    drain: Annotated[
        str, typer.Option(metavar="DIR", help="Fetch there meanwhile, and remove on the host what is safe here.")
    ] = "",
    remake: Annotated[
        bool,
        typer.Option("--remake", help="With --drain: also make again what neither the host nor DIR has any more."),
    ] = False,
    failures: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the prompts without a dump there, with the reasons.")
    ] = None,
    tokenized: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the prompts there as they are sent: token ids, loss masks."),
    ] = None,
) -> None:
    """Send each prompt that has no dump yet and wait for its line in the manifest. Run it again to continue."""
    wish = Wish(
        prompts, tuple(server or ()), limit, concurrency, relaunch, room_wait, failures, tokenized, drain, remake
    )
    run(ctx, "extract", lambda session: drive(session, wish))


def drive(session: Session, wish: Wish) -> Outcome:
    """The command's body, for playbooks too."""
    from hsops.core.prompt_files import read_prompts
    from hsops.extract.extract import extract as extract_
    from hsops.extract.job import Drained, Job
    from hsops.extract.journal import journal_path
    from hsops.extract.tokenized import check_places
    from hsops.render import extract as render

    specs = session.servers(wish.servers, lambda spec: _captures(session, spec))
    lost = _lost(wish, specs)
    places = tuple(_place(session, spec, lost.get(spec.name)) for spec in specs)
    path = Path(wish.prompts).expanduser()
    tokenized, failures = check_places(wish.tokenized, wish.failures, wish.prompts)
    read = read_prompts(wish.prompts, session.console.emit)[: wish.limit or None]
    patience = wish.room_wait if wish.room_wait is not None else DRAINED_ROOM_S if wish.drain else ROOM_S
    job = Job(places, path, read, wish.concurrency, wish.relaunch, patience, journal_path(path), tokenized)

    def extracted(job: Job) -> Outcome:
        return render.outcome(extract_(job, session.console.emit), failures, drained=bool(wish.drain))

    if not wish.drain:
        return extracted(job)
    to = Path(wish.drain).expanduser()
    return drained(
        session,
        [spec.name for spec in specs],
        wish.drain,
        frozenset(prompt.id for prompt in read),
        lambda check: extracted(replace(job, drained=Drained(to, home(wish.drain), check, lambda: home(wish.drain)))),
        lost=_lost(wish, specs),  # each sees the host for itself
    )


def _lost(wish: Wish, specs: Sequence[ServerSpec]) -> dict[str, Lost]:
    """By server, what ``--remake`` is to make again.

    Raises:
        UsageError: nobody can tell what that is.
    """
    from hsops.remote.dumps import Lost

    if not wish.remake:
        return {}
    if not wish.drain:
        why = "a manifest does not say whether a dump that its host has not any more is safe elsewhere"
        raise UsageError("--remake needs --drain DIR", why=why, fix="--drain DIR, where they are to be")
    here = frozenset(home(wish.drain))
    return {spec.name: Lost(here) for spec in specs}


def _captures(session: Session, spec: ServerSpec) -> bool:
    return any(session.inventory.patches[name].kind == "hs-dump" for name in spec.patches)


def _place(session: Session, spec: ServerSpec, lost: Lost | None) -> Place:
    from hsops.extract.place import Place
    from hsops.extract.plan import capture_of
    from hsops.remote.dumps import folder_of

    return Place(
        spec.name,
        folder_of(session.inventory.hosts[spec.host], spec),
        session.agent(spec.host),
        capture_of(spec, session.inventory.patches),
        diagnose=lambda run_id: _diagnose(session, spec, run_id),
        launch=lambda replace: _launch(session, spec, replace=replace),
        env=spec.env,
        lost=lost,
    )


def _diagnose(session: Session, spec: ServerSpec, run_id: str) -> Finding:
    from hsops.cli import diagnose
    from hsops.extract.place import Finding

    found = diagnose.live(session, spec.name, run_id=run_id)
    verdict = found.data["verdict"]
    return Finding(bool(found.exit_code), f"{verdict['class']}: {verdict['summary']}", verdict)


def _launch(session: Session, spec: ServerSpec, *, replace: bool) -> None:
    from hsops.cli import launch
    from hsops.core.errors import UnhealthyError
    from hsops.core.events import Note

    found = launch.bring_up(session, launch.Wish(spec.name, wait=True, replace=replace))
    if found.exit_code == INTERRUPTED:  # Ctrl-C is for the extract: another launch would end the run that is left
        for line in found.lines:
            session.console.emit(Note(line, spec.host))
        raise KeyboardInterrupt
    if found.exit_code:
        said = found.errors[0]["message"] if found.errors else f"{spec.name} did not become healthy"
        raise UnhealthyError(said, host=spec.host, fix=f"hsops diagnose {spec.name}")
