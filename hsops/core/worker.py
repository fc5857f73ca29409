"""Threads whose failures are not lost."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Worker(threading.Thread):
    """A daemon thread that keeps what it raised, for whoever waits for it.

    A daemon: Ctrl-C must never wait for a host that does not answer.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._raised = target, list[BaseException]()

    def run(self) -> None:
        """Run the target."""
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - handed on by ``check``, in the thread that can act on it
            self._raised.append(error)

    def check(self) -> None:
        """Raise here what the thread raised, if it did."""
        if self._raised:
            raise self._raised[0]
