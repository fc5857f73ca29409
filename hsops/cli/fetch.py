"""``hsops fetch``: bring the dumps here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hsops.cli.wiring import Session, run
from hsops.render.console import Outcome

if TYPE_CHECKING:  # pydantic is not for --help
    from hsops.core.inventory import Channel

STREAMS = "4..8"


def fetch(
    ctx: typer.Context,
    *,
    server: Annotated[str, typer.Option("--server", "-s", metavar="NAME", help="Whose dumps (the default).")] = "",
    to: Annotated[str, typer.Option(metavar="DIR", help="Where they go (hs/SERVER).")] = "",
    streams: Annotated[
        str, typer.Option(metavar="MIN..MAX", help="Connections at once: more while that is faster. Or N.")
    ] = STREAMS,
    channel: Annotated[
        Literal["auto", "direct", "ssh", ""],
        typer.Option(help="How the bytes come: TLS beside SSH, ssh, or what works (the inventory's; auto)."),
    ] = "",
    recheck: Annotated[bool, typer.Option("--recheck", help="Read every local file again, touched or not.")] = False,
) -> None:
    """Pull the dumps that are not here yet: resumed, checked against the manifest, never deleted on the host."""
    run(
        ctx,
        "fetch",
        lambda session: pull(session, server or None, to, streams=streams, channel=channel, recheck=recheck),
    )


def pull(
    session: Session,
    server: str | None,
    to: str = "",
    *,
    streams: str = STREAMS,
    channel: Channel | Literal[""] = "",
    recheck: bool = False,
) -> Outcome:
    """The command's body, for playbooks too."""
    from hsops.fetch.dumps import Dumps
    from hsops.fetch.fetch import fetch as fetch_
    from hsops.fetch.pace import parse_streams
    from hsops.fetch.pull import Wish
    from hsops.remote.dumps import folder_of
    from hsops.render import fetch as render

    wish = Wish(parse_streams(streams))
    spec = session.server(server)
    host = session.inventory.hosts[spec.host]
    emit, way, agent = session.console.emit, channel or host.channel, session.agent(host)
    source, target = Dumps(agent, folder_of(host, spec), emit), Path(to or f"hs/{spec.name}").expanduser()
    fetched = fetch_(agent, source, target, wish, recheck=recheck, emit=emit, way=way)
    return render.outcome(fetched, source.listing, server=spec.name, host=host.name, source=source.path, to=str(target))
