"""fetch.pool: which streams there are when the host lets in some of them only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import frames
from hsops.core.errors import UnreachableError
from hsops.fetch import pace
from hsops.fetch.dumps import DumpLayout
from hsops.fetch.folder import open_folder
from hsops.fetch.pace import FIRST, Streams
from hsops.fetch.pieces import Pieces
from hsops.fetch.plan import Part, Transfer
from hsops.fetch.pool import Pool, Results
from tests.fetching import wait_for
from tests.unit.test_fetch_plan import A

MOST = 8


class Held:
    """A line that flows, and brings nothing more until ``stop``."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop, self._rest = stop, [frames.MAGIC]

    def ask(self, *_: object, **_more: object) -> None:
        pass

    def read(self, _: int) -> bytes:
        if self._rest:
            return self._rest.pop()
        self._stop.wait()
        return b""

    def why(self) -> str:
        return ""

    def close(self) -> None:
        pass


class Doors:
    """A far host: stream 0 is let in at once, those in ``refused`` once ``flows`` is set, the others ``later``."""

    far, name = True, "ssh"

    def __init__(self, stop: threading.Event) -> None:
        self.stop, self.flows, self.later = stop, threading.Event(), threading.Event()
        self.refused: set[str] = set()
        self.asked: list[str] = []

    def open(self, _: object) -> Held:
        name = threading.current_thread().name
        self.asked.append(name)
        if name in self.refused:
            assert self.flows.wait(60)
            raise UnreachableError("Connection closed by remote host")
        if name != "fetch-0":
            assert self.later.wait(60)
        return Held(self.stop)

    def shut(self, *_: object) -> None:
        pass


@contextmanager
def pooled(to: Path) -> Iterator[tuple[Pool, Doors]]:
    """With work for all streams."""
    stop = threading.Event()
    doors: Any = Doors(stop)
    files = [replace(A, name=f"s{i}", part=f"s{i}.part", bytes=FIRST) for i in range(40)]
    pieces = Pieces([Transfer(file, Part(0), "new") for file in files])
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    results = Results(nothing, nothing, nothing, nothing, pytest.fail)
    with open_folder(to, DumpLayout()) as folder:
        pool = Pool(
            doors, "h", folder, pieces, streams=Streams(2, MOST), sums="xxh3", always=False, stop=stop, results=results
        )
        try:
            yield pool, doors
        finally:
            stop.set()
            doors.flows.set()
            doors.later.set()
            pool.join()


def manned(pool: Pool, true: Callable[[], bool], what: str) -> None:
    """As a pull does, until it is so."""

    def look() -> bool:
        pool.man(0)
        return true()

    wait_for(look, what)


@pytest.mark.parametrize("refused", [{"fetch-5"}, {"fetch-2", "fetch-7"}])
def test_one_that_is_refused_costs_the_others_nothing(
    refused: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are at the door still: sshd drops some while many log in. Later there may be more again."""
    with pooled(tmp_path) as (pool, doors):
        doors.refused = refused
        manned(pool, lambda: len(doors.asked) == MOST and pool.flowing == 1, "a stream that flows")
        doors.flows.set()
        manned(pool, lambda: sum(s.refused for s in pool._streams) == len(refused), "the refusal")
        doors.later.set()
        manned(pool, lambda: pool.flowing == MOST - len(refused), "the others")

        assert (pool._pace.wanted, len(doors.asked)) == (MOST - len(refused), MOST)
        assert {s.worker.name for s in pool._streams if s.state == "flowing"}.isdisjoint(refused)
        assert f"no more than {MOST - len(refused)} streams" in str([pool.notes.get() for _ in refused][-1])

        monkeypatch.setattr(pace, "AGAIN_S", 0.0)
        manned(pool, lambda: pool.flowing == MOST, "as many as before")
        assert pool.notes.empty() and pool.lost == 0
