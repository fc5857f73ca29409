"""A thread that does one thing after the other, and whose death is noticed."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .hello import say

TICK_S = 1.0
HANDOVER_S = 0.0005


def hand_over_soon() -> None:
    """Have whoever runs Python in this process let a waiting thread in after half a millisecond instead of five.

    A scheduler without requests asks its sockets again and again and never lets go by itself. Our threads need the
    interpreter's lock a few times a block of 64 MiB, and each time would cost 5 ms during which nothing is written.
    """
    if sys.getswitchinterval() > HANDOVER_S:
        sys.setswitchinterval(HANDOVER_S)


class Loop:
    """Handles what is put to it in order. When its thread dies, the item in hand is given up and a new thread goes on.

    Args:
        name: of the thread.
        handle: called with each item; may raise nothing that it can help.
        give_up: (item, reason): what was in hand when the thread died. Not called for an item that was handled whole.
        tick: called about every second, busy or not.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Any], None],
        give_up: Callable[[Any, str], None],
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._name, self._handle, self._give_up, self._tick = name, handle, give_up, tick
        self._items: deque[Any] = deque()  # the first is the one in hand: none is lost between queue and handler
        self._in_hand = self._ended = False
        self._put = threading.Event()
        self._ticked = time.monotonic()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._start()

    def put(self, item: Any) -> None:
        """Have an item handled. None ends the thread after all that was put before."""
        self._items.append(item)
        self._put.set()

    def ensure(self) -> str:
        """See to it that there is a thread; returns why there cannot be one, or nothing. Cheap when all is well."""
        if self._ended or (self._thread is not None and self._thread.is_alive()):
            return ""
        with self._lock:
            return "" if self._thread is not None and self._thread.is_alive() else self._replace("it is gone")

    def join(self) -> None:
        """Wait for the end that ``put(None)`` asked for, by whichever thread."""
        while not self._ended and not self.ensure():
            thread = self._thread
            if thread is not None:
                thread.join(TICK_S)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        self._thread = thread

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 - SystemExit and all: whatever ended it, its work must go on
            with self._lock:
                self._replace(f"{type(error).__name__}: {error}")

    def _serve(self) -> None:
        while True:
            self._breathe()
            self._put.clear()
            if not self._items:
                self._put.wait(TICK_S)
                continue
            if self._items[0] is None:
                self._ended = True
                return
            self._in_hand = True
            self._handle(self._items[0])
            self._drop()

    def _drop(self) -> None:
        """Let go of the item in hand, and of all that it holds."""
        self._items.popleft()
        self._in_hand = False

    def _breathe(self) -> None:
        now = time.monotonic()
        if now - self._ticked >= TICK_S:
            self._ticked = now
            try:
                self._tick()
            except Exception as error:  # noqa: BLE001 - nothing depends on a tick
                say(f"{self._name}: {type(error).__name__}: {error}")

    def _replace(self, reason: str) -> str:
        """Another thread instead of the dead one; the caller has the lock."""
        told = f"a capture thread ({self._name}) died: {reason}"
        say(f"{told}; another one goes on")
        try:
            if self._in_hand:
                self._give_up(self._items[0], told)
                self._drop()
            self._start()
        except Exception as error:  # noqa: BLE001 - no more threads, or no memory: whoever asks next tries again
            self._thread = None
            return f"{told}, and cannot be replaced: {error}"
        return ""
