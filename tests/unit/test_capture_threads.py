"""What becomes of samples and of the server when a capture thread dies or is slow."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from hsops.payload.hsops_hs_dump.blocks import Block, Slots
from hsops.payload.hsops_hs_dump.dispatcher import Dispatcher
from hsops.payload.hsops_hs_dump.files import DumpFile
from hsops.payload.hsops_hs_dump.jobs import Pass
from hsops.payload.hsops_hs_dump.layout import Layout
from hsops.payload.hsops_hs_dump.loop import Loop
from hsops.payload.hsops_hs_dump.rows import Failure, Ticket, place
from hsops.payload.hsops_hs_dump.scribe import Scribe
from hsops.payload.hsops_hs_dump.writer import PASSES, Writer
from tests.unit.capture_parts import InMemory, manifest, new_writer, settings_for, whole_pass

DEADLINE_S = 20.0


class Dying(InMemory):
    """Ends whichever thread reads the rows (``where`` is ``writer``) or waits for the pass (``dispatcher``)."""

    def __init__(self, ids: list[int], slots: int, *, where: str) -> None:
        super().__init__(ids, slots)
        self._where = where

    def token_bytes(self) -> bytes:
        if self._where == "dispatcher":
            raise SystemExit("killed")
        return super().token_bytes()

    def blocks(self, tick: Callable[[], None]) -> Generator[Block, None, None]:
        for block in super().blocks(tick):
            if self._where == "writer":
                block.wait = _die  # type: ignore[method-assign]
            yield block


@pytest.mark.parametrize("where,name", [("writer", "hsops-write-"), ("dispatcher", "hsops-dispatch")])
def test_a_thread_that_dies_costs_the_sample_in_its_hand(where: str, name: str, tmp_path: Path) -> None:
    """It is replaced; the sample fails and says so; the passes before and after are whole."""
    writer = new_writer(tmp_path)
    for sample, staged in (
        ("before", InMemory([1, 2], 3)),
        ("victim", Dying([3, 4], 3, where=where)),
        ("after", InMemory([5, 6], 3)),
    ):
        _, pieces = whole_pass({sample: [0, 0]})
        assert not writer.submit(staged, pieces)
    writer.close()

    lines = {line.id: line for line in manifest(tmp_path)}
    assert {id_: line.ok for id_, line in lines.items()} == {"before": True, "victim": False, "after": True}
    assert name in lines["victim"].reason and "died: SystemExit: killed" in lines["victim"].reason
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("name", ["hsops-write-0", "hsops-dispatch"])
def test_a_thread_that_is_killed_while_it_waits_costs_nothing(name: str, tmp_path: Path) -> None:
    """Killed from outside, by an exception that is none of its own."""
    writer = new_writer(tmp_path)
    (victim,) = (t for t in _threads_of(writer) if t.name == name)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(victim.ident), ctypes.py_object(SystemExit))
    victim.join(DEADLINE_S)

    ids, pieces = whole_pass({f"s{i}": [i] for i in range(8)})
    writer.submit(InMemory(ids, 3), pieces)
    writer.close()

    assert not victim.is_alive()
    assert len(manifest(tmp_path)) == 8 and all(line.ok for line in manifest(tmp_path))


def test_a_thread_that_vanished_is_missed_by_whoever_asks() -> None:
    """Without a last word: what it had in hand is given up, what waits is handled."""
    told: list[tuple[str, str]] = []
    loop = Loop("test", lambda item: told.append((item, "handled")), lambda item, reason: told.append((item, reason)))
    loop.put(None)
    loop.join()
    loop._ended, loop._in_hand = False, True
    loop._items = type(loop._items)(["in hand", "waits", None])

    problem = loop.ensure()
    loop.join()

    assert not problem
    assert told == [("in hand", "a capture thread (test) died: it is gone"), ("waits", "handled")]


def test_a_thread_that_cannot_be_replaced_fails_samples_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The system gives no more threads: passes are refused, lines are written by the scheduler, and it recovers."""
    writer = new_writer(tmp_path)
    dispatcher = next(t for t in _threads_of(writer) if t.name == "hsops-dispatch")
    ids, pieces = whole_pass({"victim": [1]})
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", _no_thread)
        writer.submit(Dying(ids, 3, where="dispatcher"), pieces)
        dispatcher.join(DEADLINE_S)
        ids, pieces = whole_pass({"later": [1]})
        refused = writer.submit(InMemory(ids, 3), pieces)
        writer.fail(Failure(pieces[0].ticket, refused))
    ids, pieces = whole_pass({"after": [1]})
    writer.submit(InMemory(ids, 3), pieces)
    writer.close()

    assert "cannot be replaced" in refused
    assert {line.id: line.ok for line in manifest(tmp_path)} == {"victim": False, "later": False, "after": True}
    assert "died" in capsys.readouterr().err


def test_passes_that_find_no_room_are_refused_until_there_is_some(tmp_path: Path) -> None:
    """One bounded wait, then refusals at once, then all is well again; what it cost stands in the stats."""
    writer, gate = new_writer(tmp_path, wait_s=1.0), threading.Event()

    class Slow(InMemory):
        def token_bytes(self) -> bytes:
            assert gate.wait(DEADLINE_S)
            return super().token_bytes()

    refused = []
    for number in range(PASSES + 3):
        ids, pieces = whole_pass({f"s{number}": [number]})
        began = time.monotonic()
        refused.append((bool(writer.submit(Slow(ids, 3), pieces)), time.monotonic() - began))
    gate.set()
    ids, pieces = whole_pass({"again": [1]})
    assert _eventually(lambda: not writer.submit(InMemory(ids, 3), pieces))
    writer.close()

    assert [no for no, _ in refused] == [False] * PASSES + [True] * 3
    assert refused[PASSES][1] >= 1.0 and refused[PASSES + 1][1] < 1.0 and refused[PASSES + 2][1] < 1.0
    told = json.loads(next((tmp_path / "hello").glob("*.stats")).read_text())
    assert told["passes"] == told["samples"] == PASSES + 1 and told["refused"] >= 3 and told["wait_max_s"] >= 1.0
    assert told["waiting_bytes"] == 0 and told["bytes"] == (PASSES + 1) * 48


def test_a_sample_whose_rows_stop_coming_is_given_up(tmp_path: Path) -> None:
    """Its client is gone: the unfinished file goes away by itself, and late rows are not kept."""
    writer = new_writer(tmp_path, idle_s=1)
    ticket = Ticket("aborted", 5)
    pieces, _ = place([ticket], [3], [0])
    writer.submit(InMemory([1, 2, 3], 3), pieces)

    assert _eventually(lambda: manifest(tmp_path) != [])
    pieces, _ = place([ticket], [2], [3])
    writer.submit(InMemory([4, 5], 3), pieces)
    writer.close()

    (line,) = manifest(tmp_path)
    assert not line.ok and "no more rows came for 1 s" in line.reason
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["manifest.jsonl"]


def test_no_sample_ages_while_its_rows_wait_for_writers(tmp_path: Path) -> None:
    """Minutes pass before there is room for the rest of a pass; both of its samples become whole all the same."""
    lines: dict[str, str] = {}
    clock = itertools.count(0.0, 2.0)  # two seconds later whenever it is asked
    scribes = [Scribe(0, lambda ticket, reason, _written: lines.update({ticket.id: reason}))]
    settings = settings_for(tmp_path)
    layouts = {name: Layout("F32", 4, count, settings.slots, 4, False, {}) for name, count in (("a", 3), ("b", 5))}

    def new_file(ticket: Ticket, _staged: object) -> tuple[Layout, Callable[[], DumpFile]]:
        return layouts[ticket.id], lambda: DumpFile(str(tmp_path), ticket.id, layouts[ticket.id])

    class Waiting(InMemory):
        def blocks(self, tick: Callable[[], None]) -> Generator[Block, None, None]:
            for block in super().blocks(tick):
                yield block
                for _ in range(50):
                    tick()

    dispatcher = Dispatcher(scribes, new_file, lambda: None, idle_s=9, now=lambda: next(clock))
    ids, pieces = whole_pass({"a": [1, 2, 3], "b": [4, 5, 6, 7, 8]})
    (room := threading.BoundedSemaphore(1)).acquire()
    dispatcher.loop.put(Pass(Waiting(ids, settings.slots, chunk=2), pieces, room))
    dispatcher.close()
    scribes[0].loop.put(None)
    scribes[0].loop.join()

    assert lines == {"a": "", "b": ""}


def test_one_large_file_does_not_hold_up_the_small_ones(tmp_path: Path) -> None:
    """Files are given to the thread that has least to write."""
    writer, handed = new_writer(tmp_path), threading.Event()

    class Held(InMemory):
        def blocks(self, tick: Callable[[], None]) -> Generator[Block, None, None]:
            blocks = super().blocks(tick)
            block = next(blocks)
            block.wait = handed.wait  # type: ignore[assignment,method-assign]
            yield block
            handed.set()
            yield from blocks

    ids, pieces = whole_pass({"large": [1] * 400, **{f"small{i}": [i] * 10 for i in range(12)}})
    writer.submit(Held(ids, 3), pieces)
    writer.close()

    assert sorted(scribe.samples for scribe in writer._scribes) == [1, 4, 4, 4]


def test_a_slot_comes_back_with_its_last_reader() -> None:
    """However many samples lie in it; who waits for one keeps looking after the readers."""
    slots, ticks = Slots(1), []
    slot = slots.take(lambda: None)
    block = Block(0, 1, [memoryview(b"rows")], freed=lambda: slots.give(slot))
    block.hold()
    block.done()

    def tick() -> None:
        ticks.append(1)
        block.done()

    assert slots.take(tick) == slot and ticks == [1]


def _die() -> None:
    raise SystemExit("killed")


def _no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def _threads_of(writer: Writer) -> list[threading.Thread]:
    loops = [writer._dispatcher.loop, *(scribe.loop for scribe in writer._scribes)]
    return [loop._thread for loop in loops if loop._thread is not None]


def _eventually(ready: Callable[[], bool]) -> bool:
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        if ready():
            return True
        time.sleep(0.05)
    return False


def test_a_log_that_cannot_be_written_costs_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the server's log is full: a failed sample has its line in the manifest all the same."""
    writer = new_writer(tmp_path)
    _, pieces = whole_pass({"a": [1]})

    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stderr", full)
        writer.fail(Failure(pieces[0].ticket, "odd"))
        writer.close()
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()

    assert [(line.id, line.reason) for line in manifest(tmp_path)] == [("a", "odd")]


def test_a_busy_thread_lets_the_writers_in_soon(tmp_path: Path) -> None:
    """Python's own 5 ms are cut when a writer begins; who asked for less keeps it."""
    before = sys.getswitchinterval()
    try:
        for found, then in ((0.005, 0.0005), (0.0001, 0.0001)):
            sys.setswitchinterval(found)
            new_writer(tmp_path).close()
            assert sys.getswitchinterval() == pytest.approx(then)
    finally:
        sys.setswitchinterval(before)
