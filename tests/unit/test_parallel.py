"""Calls side by side: how many at once, what a failure and Ctrl-C do."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from hsops.core.errors import RemoteError
from hsops.core.parallel import End, Watch, spread

WAIT_S = 10.0


class Log(Watch[str]):
    """Writes down what it is told; ``on_begun`` and ``on_interrupted`` may act."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.on_begun: Callable[[str], object] = str
        self.on_interrupted: Callable[[], object] = str

    def begun(self, key: str) -> None:
        self.said.append(f"+{key}")
        self.on_begun(key)

    def ended(self, key: str, end: End[str]) -> None:
        self.said.append(f"-{key}")

    def interrupted(self, under_way: tuple[str, ...]) -> None:
        self.said.append(f"!{','.join(under_way)}")
        self.on_interrupted()


def test_as_many_at_once_as_asked_and_no_more() -> None:
    """Three meet at a barrier, so three run at once; a fourth at the same time would be counted."""
    barrier, lock, counts = threading.Barrier(3), threading.Lock(), [0, 0]

    def call() -> str:
        with lock:
            counts[0] += 1
            counts[1] = max(counts)
        barrier.wait(WAIT_S)
        with lock:
            counts[0] -= 1
        return "done"

    found = spread({f"h{i}": call for i in range(9)}, at_most=3)

    assert [end.value for end in found.ended.values()] == ["done"] * 9
    assert counts[1] == 3


def test_a_failure_is_a_result_and_stops_no_other() -> None:
    """It comes with the host's name; the values of the others are there."""

    def fail() -> str:
        raise RemoteError("no", host="b")

    found = spread({"a": lambda: "1", "b": fail, "c": lambda: "3"}, at_most=1)

    assert [(key, end.value) for key, end in found.ended.items()] == [("a", "1"), ("b", None), ("c", "3")]
    assert isinstance(found.ended["b"].error, RemoteError)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_lets_those_under_way_end_and_begins_no_other() -> None:
    """The two that run are let go only after it was heard, so that the third had its chance."""
    heard, log = threading.Event(), Log()
    log.on_begun = lambda key: press() if key == "b" else None
    log.on_interrupted = heard.set

    def call() -> str:
        return "done" if heard.wait(WAIT_S) else "late"

    found = spread(dict.fromkeys("abc", call), at_most=2, watch=log, patient=True)

    assert log.said[:3] == ["+a", "+b", "!a,b"] and sorted(log.said[3:]) == ["-a", "-b"]
    assert {end.value for end in found.ended.values()} == {"done"}
    assert (found.interrupted, found.not_begun, found.under_way) == (True, ("c",), ())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_leaves_them() -> None:
    """Their names are told; the wait is over although they are not."""
    never, log = threading.Event(), Log()
    log.on_begun = lambda _: press()
    log.on_interrupted = press

    found = spread({"a": lambda: str(never.wait(WAIT_S)), "b": str}, at_most=1, watch=log, patient=True)

    never.set()
    assert (found.ended, found.under_way, found.not_begun) == ({}, ("a",), ("b",))


def test_ctrl_c_while_only_looking_leaves_at_once() -> None:
    """Nothing is changed by those under way, so nobody waits for them."""
    never, log = threading.Event(), Log()
    log.on_begun = lambda _: press()

    with pytest.raises(KeyboardInterrupt):
        spread({"a": lambda: str(never.wait(WAIT_S))}, watch=log)
    never.set()
