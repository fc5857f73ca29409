"""One agent on a host that answers verb after verb: one start, one channel, a round trip each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from hsops.core.deadline import Deadline
from hsops.core.errors import HsopsError, RemoteError
from hsops.remote.host import Completed, Stream
from hsops.remote.shell import MISSING, STORED

IDLE_S = 2.0
"""After so long a pause it is asked whether it is still there, before a verb is risked on a dead connection."""
LONGEST = 192 << 20
"""Bytes of a line. The longest is a patch's files and their originals: 128 MiB (agent/patch_site.py), as base64."""
_PING = b"{}\n"  # no request; what counts is the answer
_PING_DEADLINE = Deadline(connect=0.0, idle=5.0, total=5.0)


class Talk:
    """Holds the agent that answers. For one caller at a time.

    Args:
        start: starts an agent that serves.
        is_reply: whether a line of output ends an answer.
        agent: its file's bytes, for a host that does not have it.
    """

    def __init__(
        self, start: Callable[[Deadline], Stream], is_reply: Callable[[bytes], bool], agent: Callable[[], bytes]
    ) -> None:
        self._start, self._is_reply, self._agent = start, is_reply, agent
        self.reached = False
        """The last question got through to the host: the agent, or what starts it, was there."""
        self._stream: Stream | None = None
        self._lines: Iterator[bytes] = iter(())
        self._heard, self._new = 0.0, False

    def ask(self, request: bytes, deadline: Deadline, replies: int = 1) -> list[bytes] | Completed:
        """The replies to a line of requests, or how the agent ended before the last of them.

        Whatever else happens ends the agent, and with it the verb.
        """
        self.reached = False
        if self._stream and self._stream.started and time.monotonic() - self._heard > IDLE_S:
            with suppress(HsopsError):
                self._exchange(self._stream, _PING, _PING_DEADLINE, 1)
        self.reached = False
        if not self.begun:
            self.begin(deadline)
        assert self._stream
        return self._exchange(self._stream, request, deadline, replies)

    @property
    def begun(self) -> bool:
        """An agent was started that can be asked, as far as is known here; of a new one the first question tells."""
        return bool(self._stream and (self._new or self._stream.listens))

    def begin(self, deadline: Deadline) -> None:
        """Start an agent, for a question that comes soon."""
        self.leave()
        self._stream = self._start(deadline)
        self._lines, self._heard, self._new = lines(self._stream), time.monotonic(), True

    def leave(self) -> None:
        """End the agent. Idempotent."""
        stream, self._stream = self._stream, None
        if stream:
            with suppress(HsopsError):
                stream.__exit__(None, None, None)

    def _exchange(self, stream: Stream, request: bytes, deadline: Deadline, replies: int) -> list[bytes] | Completed:
        found: list[bytes] = []
        self._new = False
        try:
            stream.say(request, deadline)
            for line in self._lines:
                if line in (MISSING, STORED):
                    stream.say(self._agent() if line == MISSING else request, deadline)
                elif self._is_reply(line):
                    found.append(line)
                if len(found) == replies:
                    self._heard = time.monotonic()
                    return found
            return stream.finish()
        finally:
            self.reached = stream.started
            if len(found) < replies:
                self.leave()


class Answers:
    """Of questions that travelled with an earlier one."""

    def __init__(self) -> None:
        self.expected: list[bytes] = []
        """What will be asked next."""
        self._held: list[tuple[bytes, bytes]] = []
        self._since = 0.0

    def take(self, request: bytes) -> bytes | None:
        """The answer, if this is the next question and its answer is there, and new."""
        if self._held and self._held[0][0] == request and time.monotonic() - self._since < IDLE_S:
            return self._held.pop(0)[1]
        self._held = []
        return None

    def asked_with(self, request: bytes) -> list[bytes]:
        """The request and those that are expected after it."""
        expected, self.expected = self.expected, []
        return expected if expected[:1] == [request] else [request]

    def keep(self, requests: list[bytes], replies: list[bytes]) -> bytes:
        """The answer to the first of them; the others wait until they are asked for."""
        self._held, self._since = list(zip(requests[1:], replies[1:], strict=True)), time.monotonic()
        return replies[0]


def lines(stream: Stream) -> Iterator[bytes]:
    """Whole lines of a stream's output, without their ends.

    Raises:
        RemoteError: one that has no end in sight: nobody's memory is for that.
    """
    held: list[bytes] = []  # joined once: a line may come in thousands of pieces
    size = 0
    for piece in stream:
        first, *others = piece.split(b"\n")
        held.append(first)
        size = len(others[-1]) if others else size + len(first)
        if size > LONGEST:
            raise RemoteError(f"a line of more than {LONGEST >> 20} MiB came: it is not the agent that talks")
        if others:
            yield b"".join(held)
            yield from others[:-1]
            held = [others[-1]]
