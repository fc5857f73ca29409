"""What may be under way at one server: so many requests, and the tokens that it holds, so that its queue is short."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

_LOOK_S = 0.5


class Gate:
    """Lets requests in while there are few, and while their tokens fit together; one larger than all goes alone.

    Args:
        requests: at once.
        tokens: at once; None: no bound.
    """

    def __init__(self, requests: int, tokens: int | None) -> None:
        self._requests, self._tokens = requests, tokens
        self._running, self._inside = 0, 0
        lock = threading.Lock()  # one place is for one who waits: waking all of them costs more than a request
        self._place, self._room = threading.Condition(lock), threading.Condition(lock)

    @property
    def inside(self) -> int:
        """Tokens under way."""
        return self._inside

    def ticket(self, over: Callable[[], bool]) -> Ticket | None:
        """Wait until one request more may be under way; None when it is over."""
        with self._place:
            while self._running >= self._requests:
                if over():
                    return None
                self._place.wait(_LOOK_S)
            self._running += 1
            return Ticket(self)

    def _enter(self, tokens: int, over: Callable[[], bool]) -> bool:
        with self._room:
            while self._tokens is not None and self._inside and self._inside + tokens > self._tokens:
                if over():
                    return False
                self._room.wait(_LOOK_S)
            self._inside += tokens
            return True

    def _leave(self, tokens: int) -> None:
        with self._place:
            self._inside -= tokens
            self._running -= 1
            self._place.notify()
            self._room.notify_all()


class Ticket:
    """One request's place. As a context it is given back at the end; before that by ``leave``, once it is answered."""

    def __init__(self, gate: Gate) -> None:
        self._gate: Gate | None = gate
        self._tokens = 0

    def enter(self, tokens: int, over: Callable[[], bool]) -> bool:
        """Wait until its tokens have room; False when it is over."""
        entered = self._gate is not None and self._gate._enter(tokens, over)  # noqa: SLF001 - its other half
        self._tokens = tokens if entered else 0
        return entered

    def leave(self) -> None:
        """Idempotent."""
        gate, self._gate = self._gate, None
        if gate:
            gate._leave(self._tokens)  # noqa: SLF001

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.leave()


def capacity(info: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Tokens that the server's cache holds and requests that it runs at once; None for what it does not tell.

    Args:
        info: SGLang's ``server_info``, which tells of one part of a server with data parallelism.
    """
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    parts = _count(info.get("dp_size")) or 1
    tokens = _count(info.get("max_total_num_tokens"))
    requests = _count(state.get("effective_max_running_requests_per_dp"))
    return tokens and tokens * parts, requests and requests * parts


def _count(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
