"""``hsops fetch --dry-run``: what would come, and how long it would take."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from hsops.core.errors import HsopsError
from hsops.core.events import Emit, ignore
from hsops.fetch.fetch import Source
from hsops.fetch.folder import Contents, Folder
from hsops.fetch.line import Ways, ways
from hsops.fetch.pieces import Pieces
from hsops.fetch.plan import Plan
from hsops.fetch.prepare import forecast
from hsops.fetch.pull import Wish
from hsops.fetch.space import room
from hsops.fetch.trouble import Trouble, only_copy
from hsops.fetch.wire import Data, Reader, Whole
from hsops.remote.agent import Agent

PROBE = 16 << 20  # bytes that are read and thrown away to learn how fast they come
PROBE_S = 3.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a fetch would do.

    Args:
        files, bytes: on the host.
        files_to_send, bytes_to_send: of them.
        files_to_check, bytes_to_check: that would be read here first, and sent only if they are damaged.
        free: bytes free here; None when the folder's file system cannot be looked at.
        rate: bytes a second of one stream, as measured just now, or the limit; 0 when nothing is to come.
        channel: over which.
        conflicts: ids whose local dump is of another prompt: the fetch would refuse.
        troubles: what would not come.
    """

    files: int
    bytes: int
    files_to_send: int
    bytes_to_send: int
    files_to_check: int
    bytes_to_check: int
    free: int | None
    rate: float
    channel: str
    conflicts: tuple[str, ...]
    troubles: tuple[Trouble, ...]

    @property
    def eta_s(self) -> float | None:
        """Seconds at the rate of one stream: several are seldom slower."""
        return self.bytes_to_send / self.rate if self.rate else None


def look_ahead(agent: Agent, source: Source, to: Path, wish: Wish, emit: Emit) -> Forecast:
    """Nothing is made or changed, here or there.

    Raises:
        HsopsError: the host's folder cannot be read.
    """
    files = source.look()
    contents = Folder(to, source.layout).read() if to.is_dir() else Contents({}, {}, {}, untidy=False)
    todo = forecast(files, contents)
    rate, channel = _measured(agent, source, todo, wish, emit) if todo.bytes_to_send else (0.0, "")
    return Forecast(
        files=len(files),
        bytes=sum(f.bytes for f in files.values()),
        files_to_send=len(todo.transfers),
        bytes_to_send=todo.bytes_to_send,
        files_to_check=len(todo.check),
        bytes_to_check=sum(f.bytes for f in todo.check),
        free=room(to),
        rate=min(rate, wish.rate or rate),
        channel=channel,
        conflicts=todo.conflicts,
        troubles=(*map(only_copy, todo.only_here), *source.refused),
    )


def _measured(agent: Agent, source: Source, todo: Plan, wish: Wish, emit: Emit) -> tuple[float, str]:
    with ways(agent, source.path, wish.way, todo.bytes_to_send, emit) as found:
        return _rate(found, agent.host.name, todo), found.name


def _rate(found: Ways, host: str, todo: Plan) -> float:
    """Bytes a second of one stream, from the first byte on; 0 when it cannot be told."""
    batch = Pieces(todo.transfers).take(1)
    try:
        with closing(found.open(ignore)) as line:
            reader = Reader(line.read, host)
            reader.begin()
            line.ask(batch, "xxh3", always=False)
            began, got = 0.0, 0
            for event in reader.events(batch):
                now = time.monotonic()
                began = began or now
                if isinstance(event, Data | Whole):
                    got += len(event.data)
                if got >= PROBE or now - began > PROBE_S:
                    break
            return got / max(1e-3, time.monotonic() - began) if got else 0.0
    except HsopsError:
        return 0.0
