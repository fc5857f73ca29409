"""A stream that outlives its link. Time and the link are arguments."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import count

import pytest

from hsops.core.errors import (
    AgentError,
    AgentKilledError,
    AuthenticationError,
    HostKeyError,
    HsopsError,
    RemoteError,
    UnreachableError,
)
from hsops.remote.reattach import Retry, reattaching

LOST = UnreachableError("lost")


class Link:
    """Attaches give what they are told to: items, then an error or the end."""

    def __init__(self, *attaches: list[int | HsopsError]) -> None:
        self._attaches, self.clock, self.waits = iter(attaches), 0.0, list[float]()

    def attach(self) -> Generator[int, None, None]:
        for item in next(self._attaches):
            if isinstance(item, HsopsError):
                raise item
            yield item

    def pause(self, seconds: float) -> None:
        self.clock += seconds

    def items(self, retry: Retry) -> list[int]:
        def lost(_: HsopsError, wait: float) -> None:
            self.waits.append(wait)

        return list(reattaching(self.attach, retry, lost, pause=self.pause, now=lambda: self.clock))


def test_it_goes_on_after_the_link_broke() -> None:
    """The pause grows while nothing is heard, and is short again after a word."""
    link = Link([1, 2, LOST], [LOST], [LOST], [LOST], [3, LOST], [4])

    assert link.items(Retry(first=1, longest=3)) == [1, 2, 3, 4]
    assert link.waits == [1, 2, 3, 3, 1]


def test_it_is_given_up_when_nothing_is_heard_for_too_long() -> None:
    """With the link's own error."""
    endless = Link(*([LOST] for _ in range(100)))

    with pytest.raises(UnreachableError, match="lost"):
        endless.items(Retry(first=1, longest=5, patience=20))

    assert sum(endless.waits) <= 20 < sum(endless.waits) + 5


@pytest.mark.parametrize(
    "error",
    [
        HostKeyError("changed"),
        AuthenticationError("no"),
        AgentError("no", code="no-such-run"),
        RemoteError("no python"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_no_waiting_mends_is_told_at_once(error: HsopsError) -> None:
    """A changed host key above all."""
    link = Link([1, error], [2])

    with pytest.raises(type(error)):
        link.items(Retry())

    assert link.waits == []


@pytest.mark.parametrize("make", [lambda: AgentKilledError("signal 15"), lambda: LOST])
def test_an_sshd_that_is_stopped_takes_the_agent_with_it(make: Callable[[], HsopsError]) -> None:
    """Whatever is first noticed of it; and while it goes down it may let a shell die before it begins."""
    link = Link([1, make()], [RemoteError("the login shell did not run the command")], [2])

    assert link.items(Retry()) == [1, 2]
    assert link.waits == [1, 2]


def test_who_leaves_ends_the_stream() -> None:
    """The agent's verb on the host ends with it."""
    closed = []

    def attach() -> Generator[int, None, None]:
        try:
            yield from count()
        finally:
            closed.append(True)

    items = reattaching(attach, Retry(), lambda *_: None)
    assert next(items) == 0
    items.close()  # type: ignore[attr-defined]

    assert closed == [True]
