"""``hsops fetch``: bring the dumps here, or any folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hsops.cli.wiring import Session, run
from hsops.core.errors import UsageError
from hsops.render.console import Outcome

if TYPE_CHECKING:  # pydantic is not for --help
    from hsops.core.events import Emit
    from hsops.core.inventory import Channel, HostSpec
    from hsops.fetch.dumps import Dumps
    from hsops.fetch.fetch import Fetched
    from hsops.fetch.pull import Wish
    from hsops.fetch.tree import TreeFolder
    from hsops.remote.agent import Agent
    from hsops.remote.dumps import Lost

STREAMS = "2..8"
Servers = Annotated[
    list[str] | None,
    typer.Option("--server", "-s", metavar="NAME", help="Whose dumps (the default); A,B or repeated: of all."),
]


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
    folder: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Beside:
    """What a fetch beside an extract goes by.

    Args:
        of: ids of its samples: what others left on the host is none of its business.
        over: says whether the extract has ended.
        check: called twice a second; raises when the fetch is to end.
        lost: by server, what its host has not any more and the extract makes again.
    """

    of: frozenset[str]
    over: Callable[[], bool]
    check: Callable[[], None]
    lost: Mapping[str, Lost] = field(default_factory=dict)


def fetch(
    ctx: typer.Context,
    *,
    server: Servers = None,
    to: Annotated[str, typer.Option(metavar="DIR", help="Where they go (hs/SERVER).")] = "",
    folder: Annotated[
        str, typer.Option("--from", metavar="DIR", help="Any folder of the host instead of the dumps.")
    ] = "",
    include: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="With --from: only these names (paths with /); repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="With --from: not these, nor what is in them; repeatable.")
    ] = None,
    streams: Annotated[
        str, typer.Option(metavar="MIN..MAX", help="Connections at once: more while that is faster. Or N.")
    ] = STREAMS,
    channel: Annotated[
        Literal["auto", "direct", "ssh", ""],
        typer.Option(metavar="direct|ssh|auto", help="TLS beside SSH, ssh, or what works (the inventory's; auto)."),
    ] = "",
    recheck: Annotated[bool, typer.Option("--recheck", help="Read every local file again, touched or not.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run that writes there ends.")] = False,
    count: Annotated[
        int, typer.Option(min=0, metavar="N", help="With --follow: until the host's manifest names N samples.")
    ] = 0,
    evict: Annotated[
        bool, typer.Option("--evict", help="Remove a dump on the host once it is safe here; with a ledger.")
    ] = False,
    max_rate: Annotated[str, typer.Option(metavar="RATE", help="Bytes a second at most: 50M, 1.5G.")] = "",
    checksum: Annotated[
        Literal["fast", "sha256"], typer.Option(metavar="fast|sha256", help="On the way: xxh3 or crc32; or sha256.")
    ] = "fast",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would come, and how long it takes.")
    ] = False,
) -> None:
    """Pull the dumps that are not here yet: resumed, checked; the host keeps them without --evict."""
    patterns = tuple(include or ()), tuple(exclude or ())
    options = Options(
        to, streams, channel, recheck, follow, count, evict, max_rate, checksum, dry_run, folder, *patterns
    )
    run(ctx, "fetch", lambda session: pull_all(session, server or [], options))


def pull_all(session: Session, servers: list[str], options: Options) -> Outcome:
    """The command's body: one server after another, into one folder."""
    from hsops.render import fetch as render

    names = list(dict.fromkeys(name.strip() for some in servers for name in some.split(",") if name.strip()))
    if len(names) < 2:
        return pull(session, names[0] if names else None, options)
    if options.folder:
        raise UsageError("--from DIR is of one host; several servers have several dump folders", fix="name one of them")
    if options.follow:
        raise UsageError(
            "--follow is of one server: it goes on until that one's run ends",
            fix="a fetch for each into a folder of its own; or, when the runs have ended, of all without --follow",
        )
    to = replace(options, to=options.to or f"hs/{'+'.join(names)}")
    shared = dict[str, "Fetched"]()
    return render.together({name: pull(session, name, to, shared) for name in names})


def pull(
    session: Session,
    server: str | None,
    options: Options,
    shared: dict[str, Fetched] | None = None,
    beside: Beside | None = None,
) -> Outcome:
    """The body for one server, for playbooks too.

    Args:
        session: of the command.
        server: its name; None: the default.
        options: as on the command line.
        shared: what came so far of servers that share the folder: of others it is left, and this one's is added.
        beside: an extract that it drains.
    """
    from hsops.fetch.fetch import fetch as fetch_
    from hsops.fetch.forecast import look_ahead
    from hsops.render import fetch as render

    host, name = _whose(session, server, options)
    wish, emit, agent = _wish(options, host), session.console.emit, session.agent(host)
    to = Path(options.to or f"hs/{name}").expanduser()
    wish = replace(wish, check=beside.check) if beside else wish
    leave = frozenset(file for other, got in (shared or {}).items() if other != name for file in got.files)
    dumps = None if options.folder else _dumps(session, agent, name, to, options, leave=leave, beside=beside)
    source = dumps or _folder(agent, to, options, emit)
    where = {"server": name, "host": host.name, "source": source.path, "to": str(to)}
    if options.dry_run:
        return render.forecast(look_ahead(agent, source, to, wish, emit), **where)
    fetched = fetch_(agent, source, to, wish, emit)
    if shared is not None:
        fetched = shared[name] = fetched.after(shared[name]) if name in shared else fetched
    return render.outcome(fetched, dumps.listing if dumps else None, **where)


def _whose(session: Session, server: str | None, options: Options) -> tuple[HostSpec, str]:
    """The host, and the server whose dumps are wanted."""
    if not options.folder and (options.include or options.exclude):
        raise UsageError("--include and --exclude are for --from DIR", fix="of dumps all are fetched")
    if not options.folder or server:
        spec = session.server(server)
        return session.inventory.hosts[spec.host], spec.name
    hosts = session.hosts()
    if len(hosts) != 1 or not options.to:
        raise UsageError("--from DIR needs --to DIR and one host", fix="--host NAME, before the command")
    return hosts[0], ""


def _dumps(
    session: Session,
    agent: Agent,
    name: str,
    to: Path,
    options: Options,
    *,
    leave: frozenset[str],
    beside: Beside | None,
) -> Dumps:
    """The server's, until its run ends if they are followed, or until the extract has ended."""
    from hsops.fetch.dumps import Dumps, Until, end_of_run
    from hsops.remote.dumps import folder_of

    spec, emit = session.server(name), session.console.emit
    path = folder_of(session.inventory.hosts[spec.host], spec)
    if beside:
        until, lost = Until(over=beside.over), beside.lost.get(name)
        return Dumps(agent, path, emit, until, to=to, leave=leave, of=beside.of, lost=lost)
    until = end_of_run(agent, name, options.count) if options.follow else Until()
    return Dumps(agent, path, emit, until, to=to, leave=leave)


def _folder(agent: Agent, to: Path, options: Options, emit: Emit) -> TreeFolder:
    from hsops.fetch.tree import TreeFolder

    if options.count:
        raise UsageError("--count counts samples; with --from, --follow goes on until nobody writes there any more")
    return TreeFolder(agent, options.folder, to, include=options.include, exclude=options.exclude, emit=emit)


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
