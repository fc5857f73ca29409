"""Tokens under way at one server: no more than it can hold, so that its queue stays short."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any


class Gate:
    """Lets prompts in while their tokens fit together; one that is larger than all goes alone.

    Args:
        most: tokens; None: no bound.
    """

    def __init__(self, most: int | None) -> None:
        self.most, self._inside, self._changed = most, 0, threading.Condition()

    @property
    def inside(self) -> int:
        """Tokens under way."""
        return self._inside

    def enter(self, tokens: int, over: Callable[[], bool]) -> bool:
        """Wait for room; False when it is over."""
        with self._changed:
            while self.most is not None and self._inside and self._inside + tokens > self.most:
                if over():
                    return False
                self._changed.wait(0.5)
            self._inside += tokens
            return True

    def leave(self, tokens: int) -> None:
        """Of a prompt that was let in."""
        with self._changed:
            self._inside -= tokens
            self._changed.notify_all()


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
