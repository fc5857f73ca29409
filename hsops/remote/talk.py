"""One agent on a host that answers verb after verb: one start, one channel, a round trip each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from hsops.core.deadline import Deadline
from hsops.core.errors import HsopsError
from hsops.remote.host import Completed, Stream

IDLE_S = 2.0
"""After so long a pause an agent is started anew: that finds out about a dead connection before a verb is risked."""


class Talk:
    """Holds the agent that answers. For one caller at a time.

    Args:
        start: starts an agent that serves.
        is_reply: whether a line of output ends an answer.
    """

    def __init__(self, start: Callable[[Deadline], Stream], is_reply: Callable[[bytes], bool]) -> None:
        self._start, self._is_reply = start, is_reply
        self._stream: Stream | None = None
        self._lines: Iterator[bytes] = iter(())
        self._heard = 0.0

    def ask(self, request: bytes, deadline: Deadline) -> bytes | Completed:
        """The reply to a request, or how the agent ended without one.

        Whatever else happens ends the agent, and with it the verb.
        """
        stream = self._ready(deadline)
        try:
            stream.say(request, deadline)
            for line in self._lines:
                if self._is_reply(line):
                    self._heard = time.monotonic()
                    return line
            return stream.finish()
        except BaseException:
            self._heard = 0.0
            raise
        finally:
            if not self._heard:
                self.leave()

    def leave(self) -> None:
        """End the agent. Idempotent."""
        stream, self._stream, self._heard = self._stream, None, 0.0
        if stream:
            with suppress(HsopsError):
                stream.__exit__(None, None, None)

    def _ready(self, deadline: Deadline) -> Stream:
        fresh = time.monotonic() - self._heard < IDLE_S
        if not (self._stream and fresh and self._stream.listens):
            self.leave()
            self._stream = self._start(deadline)
            self._lines = lines(self._stream)
        self._heard = 0.0  # until it has answered
        return self._stream


def lines(stream: Stream) -> Iterator[bytes]:
    """Whole lines of a stream's output, without their ends."""
    held: list[bytes] = []  # joined once: a line may come in thousands of pieces
    for piece in stream:
        first, *others = piece.split(b"\n")
        held.append(first)
        if others:
            yield b"".join(held)
            yield from others[:-1]
            held = [others[-1]]
