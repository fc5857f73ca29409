"""A bounded number of calls side by side, one a host or a file. The caller's thread waits, and hears of every end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Generic, TypeVar

T = TypeVar("T")

PARALLEL = 8
"""Hosts at once, when nobody says how many: a login costs this machine some 50 ms of a core."""
_TICK_S = 0.5


@dataclass(frozen=True, slots=True)
class End(Generic[T]):
    """How one call ended: with a ``value``, or with an ``error``, after ``seconds``."""

    value: T | None
    error: Exception | None
    seconds: float


@dataclass(slots=True)
class Spread(Generic[T]):
    """What became of the calls, by key.

    Args:
        ended: in the order of their ends.
        under_way: those that were left running, after a second Ctrl-C.
        not_begun: those that were never begun, after a first.
        interrupted: somebody pressed Ctrl-C.
    """

    ended: dict[str, End[T]] = field(default_factory=dict)
    under_way: tuple[str, ...] = ()
    not_begun: tuple[str, ...] = ()
    interrupted: bool = False


class Watch(Generic[T]):
    """Told what happens, in the caller's thread. A subclass overrides what it wants to hear."""

    def begun(self, key: str) -> None:
        """A call was begun."""

    def ended(self, key: str, end: End[T]) -> None:
        """A call has ended."""

    def waiting(self) -> None:
        """Nothing happened for half a second."""

    def interrupted(self, under_way: tuple[str, ...]) -> None:
        """Ctrl-C: no more begin, these are waited for."""


def cores() -> int:
    """How many calls that compute are worth having side by side: the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(
    calls: Mapping[str, Callable[[], T]],
    *,
    at_most: int = PARALLEL,
    watch: Watch[T] | None = None,
    patient: bool = False,
) -> Spread[T]:
    """Make all ``calls``, ``at_most`` at a time, in their order. One that fails stops no other.

    Args:
        calls: by key; each sees to its own deadline.
        at_most: how many at once, at least 1.
        watch: is told what happens.
        patient: Ctrl-C lets those under way end and begins no other; a second one leaves them. Otherwise Ctrl-C
            raises KeyboardInterrupt at once: for calls that change nothing.
    """
    found, watch = Spread[T](), watch or Watch()
    events: SimpleQueue[tuple[str, End[T]] | None] = SimpleQueue()
    waiting, running = deque(calls), dict[str, None]()
    with _interrupts(events) if patient else _as_ever():
        while running or (waiting and not found.interrupted):
            while waiting and len(running) < at_most and not found.interrupted:
                key = waiting.popleft()
                running[key] = None
                threading.Thread(target=_make, args=(key, calls[key], events), name=f"hsops-{key}", daemon=True).start()
                watch.begun(key)
            try:
                event = events.get(timeout=_TICK_S)
            except Empty:
                watch.waiting()
                continue
            if event is not None:
                del running[event[0]]
                found.ended[event[0]] = event[1]
                watch.ended(*event)
            elif found.interrupted:
                break
            else:
                found.interrupted = True
                watch.interrupted(tuple(running))
    found.under_way, found.not_begun = tuple(running), tuple(waiting)
    return found


def _make(key: str, call: Callable[[], T], events: SimpleQueue[tuple[str, End[T]] | None]) -> None:
    started = time.monotonic()
    value, error = None, None
    try:
        value = call()
    except Exception as raised:  # noqa: BLE001 - told to the caller, whose other calls go on
        error = raised
    events.put((key, End(value, error, time.monotonic() - started)))


@contextmanager
def _as_ever() -> Iterator[None]:
    yield


@contextmanager
def _interrupts(events: SimpleQueue[tuple[str, End[T]] | None]) -> Iterator[None]:
    """Ctrl-C as an event: an exception could come between an end and its record. Only the main thread gets it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(_number: int, _frame: FrameType | None) -> None:
        events.put(None)  # a SimpleQueue may be put to from a signal handler

    before = signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
