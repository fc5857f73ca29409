"""The dump folder of a server on its host, read through the agent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from hsops.core.dumps import CHECK_FOLDER, SUFFIX, Sample, latest, parse_sample
from hsops.core.errors import BadDataError, HsopsError
from hsops.core.inventory import HostSpec, ServerSpec
from hsops.remote.agent import Agent
from hsops.remote.tree import list_tree

MOST = 10_000_000
"""Lines of a manifest: a host that tells of more is not believed, and costs no more memory."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The manifest as it was at one moment.

    Args:
        samples: by id, the line that counts.
        lines: by id, that line as the host wrote it (it may have keys that ``Sample`` does not know).
        unreadable: why lines were left out, one text each.
        position: where ``follow`` goes on.
        free: bytes free on the dump file system.
        total: its size in bytes.
        exists: there is a manifest.
    """

    samples: dict[str, Sample]
    lines: dict[str, str]
    unreadable: tuple[str, ...]
    position: dict[str, int]
    free: int
    total: int
    exists: bool


@dataclass(frozen=True, slots=True)
class News:
    """What one look at the folder brought; fields that brought nothing are empty or None.

    Args:
        samples: new lines.
        lines: those lines as the host wrote them.
        unreadable: why lines were left out.
        space: (free, total) bytes.
        restarted: the manifest was replaced: what was known of it is void, everything is told again.
        gone: the watched process ended.
    """

    samples: tuple[Sample, ...] = ()
    lines: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    space: tuple[int, int] | None = None
    restarted: bool = False
    gone: bool = False


def folder_of(host: HostSpec, server: ServerSpec) -> str:
    """Where the server's ranks write dumps, as a path on the host."""
    return f"{host.dumps}/{server.name}"


def list_samples(agent: Agent, folder: str) -> Listing:
    """Read the whole manifest; a folder that is not there yet is an empty one."""
    parsed = _Parsed()
    result: dict[str, Any] = {}
    with agent.stream("dumps-list", folder=folder) as events:
        for event in events:
            if event["kind"] == "lines":
                parsed.add(event["lines"])
                if len(parsed.samples) + len(parsed.unreadable) > MOST:
                    raise HsopsError(f"the manifest of {folder} has more than {MOST:,} lines", host=agent.host.name)
            elif event["kind"] == "restarted":
                parsed = _Parsed()
            elif event["kind"] == "result":
                result = event
    samples = latest(parsed.samples)
    lines = {s.id: text for s, text in zip(parsed.samples, parsed.texts, strict=True) if samples[s.id] is s}
    return Listing(
        samples,
        lines,
        tuple(parsed.unreadable),
        result["position"],
        result["free"],
        result["total"],
        result["exists"],
    )


@dataclass
class Lost:
    """Samples that the manifest names, and whose dump was nowhere at the first look.

    Args:
        here: ids of dumps that have come.
        ids: of those that are lost; None before the first look. One that is made again is not lost any more.
    """

    here: Collection[str] = ()
    ids: set[str] | None = None

    def leave_out(self, agent: Agent, folder: str, listing: Listing) -> Listing:
        """The listing without them."""
        tree = list_tree(agent, folder, [f"*{SUFFIX}"], [CHECK_FOLDER]).entries if listing.exists else ()
        files = {entry.path for entry in tree}
        gone = {sample.id for sample in listing.samples.values() if sample.ok and sample.file not in files}
        self.ids = lost = gone.difference(self.here) if self.ids is None else self.ids & gone
        samples = {id_: sample for id_, sample in listing.samples.items() if id_ not in lost}
        return replace(listing, samples=samples, lines={id_: listing.lines[id_] for id_ in samples})

    def found(self, id_: str) -> None:
        """It has a new line."""
        if self.ids:
            self.ids.discard(id_)


@contextmanager
def follow(agent: Agent, folder: str, *, position: dict[str, int], pid: int | None = None) -> Iterator[Iterator[News]]:
    """What happens in the folder from ``position`` on, without end; ``pid`` is a process on the host to watch."""
    with agent.stream("dumps-follow", folder=folder, position=position, pid=pid) as events:
        yield (_news(event) for event in events)


@dataclass
class _Parsed:
    samples: list[Sample] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def add(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.add_one(text)

    def add_one(self, text: str) -> None:
        try:
            self.samples.append(parse_sample(text))
            self.texts.append(text)
        except BadDataError as error:
            self.unreadable.append(error.message)


def _news(event: dict[str, Any]) -> News:
    if event["kind"] == "lines":
        parsed = _Parsed()
        parsed.add(event["lines"])
        return News(tuple(parsed.samples), tuple(parsed.texts), unreadable=tuple(parsed.unreadable))
    if event["kind"] == "space":
        return News(space=(event["free"], event["total"]))
    return News(restarted=event["kind"] == "restarted", gone=event["kind"] == "gone")
