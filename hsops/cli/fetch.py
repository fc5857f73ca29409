"""``hsops fetch``: bring the dumps here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hsops.cli.wiring import Session, run
from hsops.core.errors import UsageError
from hsops.render.console import Outcome

if TYPE_CHECKING:  # pydantic is not for --help
    from hsops.core.inventory import Channel, HostSpec, ServerSpec
    from hsops.fetch.dumps import Until
    from hsops.fetch.pull import Wish
    from hsops.remote.agent import Agent

STREAMS = "4..8"


@dataclass(frozen=True, slots=True)
class Options:
    """As on the command line."""

    to: str = ""
    streams: str = STREAMS
    channel: Channel | Literal[""] = ""
    recheck: bool = False
    follow: bool = False
    count: int = 0
    evict: bool = False
    max_rate: str = ""
    checksum: Literal["fast", "sha256"] = "fast"
    dry_run: bool = False


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
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run that writes them ends.")] = False,
    count: Annotated[
        int, typer.Option(min=0, metavar="N", help="With --follow: until the host's manifest names N samples.")
    ] = 0,
    evict: Annotated[
        bool, typer.Option("--evict", help="Remove a dump on the host once it is safe here; with a ledger.")
    ] = False,
    max_rate: Annotated[str, typer.Option(metavar="RATE", help="Bytes a second at most: 50M, 1.5G.")] = "",
    checksum: Annotated[
        Literal["fast", "sha256"], typer.Option(help="Of what the host sends: xxh3 or crc32, or sha256 of all.")
    ] = "fast",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would come, and how long it takes.")
    ] = False,
) -> None:
    """Pull the dumps that are not here yet: resumed, checked; the host keeps them without --evict."""
    options = Options(to, streams, channel, recheck, follow, count, evict, max_rate, checksum, dry_run)
    run(ctx, "fetch", lambda session: pull(session, server or None, options))


def pull(session: Session, server: str | None, options: Options) -> Outcome:
    """The command's body, for playbooks too."""
    from hsops.fetch.dumps import Dumps
    from hsops.fetch.fetch import fetch as fetch_
    from hsops.fetch.forecast import look_ahead
    from hsops.remote.dumps import folder_of
    from hsops.render import fetch as render

    spec = session.server(server)
    host = session.inventory.hosts[spec.host]
    wish, emit, agent = _wish(options, host), session.console.emit, session.agent(host)
    source, target = folder_of(host, spec), Path(options.to or f"hs/{spec.name}").expanduser()
    where = {"server": spec.name, "host": host.name, "source": source, "to": str(target)}
    dumps = Dumps(agent, source, emit, _until(agent, spec, options))
    if options.dry_run:
        return render.forecast(look_ahead(agent, dumps, target, wish, emit), **where)
    return render.outcome(fetch_(agent, dumps, target, wish, emit), dumps.listing, **where)


def _wish(options: Options, host: HostSpec) -> Wish:
    from hsops.fetch.pace import parse_streams
    from hsops.fetch.pull import Wish
    from hsops.fetch.throttle import parse_rate

    if options.count and not options.follow:
        raise UsageError("--count N says how long --follow goes on", fix="add --follow")
    return Wish(
        streams=parse_streams(options.streams),
        way=options.channel or host.channel,
        sums="sha256" if options.checksum == "sha256" else "xxh3",
        always=options.checksum == "sha256",
        rate=parse_rate(options.max_rate),
        recheck=options.recheck,
        follow=options.follow,
        evict=options.evict,
    )


def _until(agent: Agent, spec: ServerSpec, options: Options) -> Until | None:
    """The run that writes them, if it is alive, and the wanted count."""
    from hsops.fetch.dumps import Until
    from hsops.remote.runs import alive_run

    if not options.follow:
        return None
    run = alive_run(agent, spec.name)
    return Until(run.pid if run else None, options.count)
