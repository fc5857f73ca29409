"""A run's log, through the agent: every byte once, whatever becomes of the link or of the file."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hsops.core.errors import HsopsError
from hsops.remote.agent import Agent
from hsops.remote.reattach import Retry, reattaching

_KEPT = 64  # bytes by which the agent knows a place again
_WHY = {
    "truncated": "the log was emptied on the host: going on with what is new in it",
    "rotated": "the log was moved aside: going on with the new one",
    "restarted": "the server was started again: going on with the log of the new attempt",
    "removed": "the log was removed on the host: going on with the new one",
}


@dataclass(frozen=True, slots=True)
class LogCut:
    """What comes next does not go on from what came before. ``why``: truncated, rotated, restarted or removed."""

    why: str

    def __str__(self) -> str:
        return _WHY.get(self.why, self.why)


@dataclass(slots=True)
class Place:
    """How far a log was read: which file (0: none yet), the offset in it in bytes, the last bytes before that."""

    file: int = 0
    offset: int = 0
    before: str = ""

    def take(self, event: dict[str, Any]) -> bytes:
        """The exact bytes of a ``log`` event, which begins at this place."""
        data = str(event["data"]).encode("utf-8", "surrogateescape")
        kept = self.before.encode("utf-8", "surrogateescape") if event["file"] == self.file else b""
        self.file, self.offset = event["file"], event["offset"] + len(data)
        self.before = (kept + data)[-_KEPT:].decode("utf-8", "surrogateescape")
        return data

    def cut(self, event: dict[str, Any]) -> LogCut:
        """A ``log-cut`` event."""
        self.file, self.offset, self.before = event["file"], 0, ""
        return LogCut(str(event["why"]))

    def param(self) -> dict[str, Any] | None:
        """For the agent; None at the beginning."""
        return asdict(self) if self.file else None


def follow_log(
    agent: Agent,
    run: str,
    *,
    lines: int | None = None,
    follow: bool = False,
    attempt: int | None = None,
    retry: Retry = Retry(),
    lost: Callable[[HsopsError, float], None] = lambda *_: None,
) -> Iterator[bytes | LogCut]:
    """A run's log, byte for byte, also over a link that breaks.

    Args:
        lines: only the last so many.
        follow: until the run has ended.
        attempt: of a server that is started again when it fails; None for the last one.
        lost: told of each broken link and the seconds until it is tried again.
    """
    place = Place()

    def attach() -> Generator[bytes | LogCut, None, None]:
        asked: dict[str, Any] = {
            "run": run,
            "lines": lines,
            "follow": follow,
            "attempt": attempt,
            "place": place.param(),
        }
        with agent.stream("log-read", **asked) as events:
            for event in events:
                if event["kind"] == "log":
                    yield place.take(event)
                elif event["kind"] == "log-cut":
                    yield place.cut(event)
                elif event["kind"] == "log-at":
                    place.file, place.offset = event["file"], event["offset"]

    return reattaching(attach, retry, lost)


def read_log(agent: Agent, run: str, *, lines: int | None = None, follow: bool = False) -> Iterator[bytes]:
    """The same for who only wants the bytes."""
    for piece in follow_log(agent, run, lines=lines, follow=follow):
        if isinstance(piece, bytes):
            yield piece
