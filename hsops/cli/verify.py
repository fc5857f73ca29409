"""``hsops verify``: are the dumps here what they claim to be, and is what the server captures right?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hsops.cli.wiring import Session, run
from hsops.core.errors import UnsupportedError, UsageError
from hsops.render.console import Outcome


def verify(
    ctx: typer.Context,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Where hsops fetch put the dumps.")] = "",
    prompts: Annotated[
        str, typer.Option("--prompts", metavar="PROMPTS", help="Every prompt must have a dump of exactly its tokens.")
    ] = "",
    live: Annotated[
        bool, typer.Option("--live", help="No folder: check the capture of the running, healthy server.")
    ] = False,
    server: Annotated[
        str, typer.Option("--server", "-s", metavar="NAME", help="With --live: which server (the default).")
    ] = "",
) -> None:
    """Check files, checksums, shapes, token ids and values of every dump; or, with --live, a server's capture itself.

    Exit 1 on any fault.
    """

    def body(session: Session) -> Outcome:
        if live:
            if folder or prompts:
                raise UsageError("--live checks a server, DIR checks dumps", fix="ask for one of them at a time")
            return check_live(session, server or None)
        if server or not folder:
            raise UsageError("verify needs DIR, or --live", fix="hsops verify DIR, or hsops verify --live -s NAME")
        return check(session, folder, prompts)

    run(ctx, "verify", body)


def check(session: Session, folder: str, prompts: str = "") -> Outcome:
    """The command's body, for playbooks too. Needs no inventory."""
    from hsops.core.events import Note
    from hsops.core.prompt_files import read_prompts
    from hsops.render import verify as render
    from hsops.verify.verify import verify as verify_

    read = read_prompts(prompts, session.console.emit) if prompts else None
    if bare := sum(not prompt.tokens for prompt in read or ()):
        said = f"{bare:,} prompts have no token ids: whether they have dumps is checked, not whose tokens these are of"
        session.console.emit(Note(f"{said}; extract --tokenized FILE makes a file to give here", level="warn"))
    verified = verify_(Path(folder).expanduser(), read, session.console.emit)
    return render.outcome(verified, folder=folder)


def for_playbook(session: Session, server: str, folder: str | None, prompts: str | None) -> Outcome:
    """A playbook's step: with a folder its dumps, without one the server."""
    return check(session, folder, prompts or "") if folder else check_live(session, server)


def check_live(session: Session, server: str | None) -> Outcome:
    """``--live``: the check dumps come here the way that all dumps do."""
    from hsops.core.events import ignore
    from hsops.fetch.dumps import Dumps
    from hsops.fetch.fetch import fetch
    from hsops.fetch.pace import Streams
    from hsops.fetch.pull import Wish
    from hsops.render import verify_live as render
    from hsops.verify.live.verify import Job, verify_live

    spec = session.server(server)
    if spec.nodes:
        raise UnsupportedError(
            f"verify --live compares what the ranks of one host wrote, and {spec.name} is on {', '.join(spec.nodes)}",
            fix="hsops verify DIR checks its dumps; verify --live on one host with the same SGLang and patch",
        )
    agent = session.agent(session.inventory.hosts[spec.host])

    def bring(source: str, to: Path) -> None:
        fetch(agent, Dumps(agent, source, ignore, to=to), to, Wish(Streams(1, 1)), ignore)

    report = verify_live(agent, Job(spec.name, spec.model, spec.env), bring, session.console.emit)
    return render.outcome(report, server=spec.name, host=agent.host.name)
