"""A stream that outlives its link: attached anew, where it was, as soon as the host can be reached again."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from hsops.core.errors import (
    AgentError,
    AgentKilledError,
    AuthenticationError,
    HostKeyError,
    HsopsError,
    RemoteError,
    UnreachableError,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """How a lost link is waited for, in seconds.

    Args:
        first, longest: the pause before the first attempt, and the longest; each is twice the one before.
        patience: without a word from the host; then it is given up.
    """

    first: float = 1.0
    longest: float = 10.0
    patience: float = 3600.0


def reattaching(
    attach: Callable[[], Generator[T, None, None]],
    retry: Retry,
    lost: Callable[[HsopsError, float], None],
    *,
    pause: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[T]:
    """The items of ``attach()``, which is called again after the link broke: it must begin where the last one ended.

    A key that is wrong or refused is no broken link, and neither is what the agent itself refuses.

    Args:
        lost: told what happened and the seconds until the next attempt.

    Raises:
        UnreachableError: there was no word for ``retry.patience``.
    """
    wait, since = retry.first, None
    while True:
        try:
            with closing(attach()) as items:
                for item in items:
                    wait, since = retry.first, None
                    yield item
            return
        except (HostKeyError, AuthenticationError, AgentError):
            raise
        except RemoteError as error:  # a dying sshd ends the agent first, and may let nothing begin
            if since is None and not isinstance(error, AgentKilledError):
                raise
            problem: HsopsError = error
        except UnreachableError as error:
            problem = error
        since = now() if since is None else since
        if now() + wait - since > retry.patience:
            raise problem
        lost(problem, wait)
        pause(wait)
        wait = min(2 * wait, retry.longest)
