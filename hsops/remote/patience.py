"""The clock of one remote call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from hsops.core.deadline import Deadline
from hsops.core.errors import DeadlineError

T = TypeVar("T")


class Patience:
    """Watches the idle and total deadlines of a call that starts now.

    Until the first output, which is the envelope's mark, ``connect`` is added to ``idle``: OpenSSH's client still has
    to log in, and a login shell to read its start-up files.

    Args:
        host: the host's name, for the error.
        deadline: how long a call may take.
    """

    def __init__(self, host: str, deadline: Deadline) -> None:
        self._host, self._deadline = host, deadline
        self._started = time.monotonic()
        self._heard = self._started + deadline.connect

    def heard(self) -> None:
        """Output came."""
        self._heard = time.monotonic()

    def left(self, at_most: float) -> float:
        """Seconds until a deadline passes, between 0 and ``at_most``."""
        now = time.monotonic()
        idle = self._heard + self._deadline.idle - now
        total = self._started + self._deadline.total - now if self._deadline.total else idle
        return max(0.0, min(idle, total, at_most))

    def check(self) -> None:
        """Raise DeadlineError when one has passed."""
        now = time.monotonic()
        if self._deadline.total and now - self._started >= self._deadline.total:
            raise DeadlineError(f"the command was not done after {self._deadline.total:g} s", host=self._host)
        if now - self._heard >= self._deadline.idle:
            raise DeadlineError(f"the command said nothing for {self._deadline.idle:g} s", host=self._host)


def within(seconds: float, work: Callable[[], T], give_up: Callable[[], object]) -> T:
    """The result of ``work``, or TimeoutError after ``seconds``.

    For library calls that have no deadline of their own (name resolution, key exchange, opening a channel). They run
    in a thread; ``give_up`` must make a late one end soon, and undo what it did.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=body, name="hsops-within", daemon=True)
    thread.start()
    try:
        thread.join(seconds)
    except BaseException:
        give_up()
        raise
    if thread.is_alive():
        give_up()
        raise TimeoutError
    if errors:
        raise errors[0]
    return results[0]
