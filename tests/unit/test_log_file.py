"""A log of any size is read once, with its beginning, its end and its news."""

from __future__ import annotations

import io
import tracemalloc

import pytest

from hsops.core.events import Event, Progress
from hsops.diagnose import log_file
from hsops.diagnose.judge import judge
from hsops.diagnose.log_file import digest
from hsops.diagnose.reading import from_log

START = b"[2026-11-29 17:40:00] server_args=ServerArgs(tp_size=1, device='cuda')\n"
READY = b"[2026-11-29 17:47:03] The server is fired up and ready to roll!\n"
BATCH = (
    b"[2026-11-29 17:50:00] Decode batch, #running-req: 1, #token: 9, gen throughput (token/s): 60.1, #queue-req: 0\n"
)
DEATH = b"[2026-11-29 18:50:00] Scheduler hit an exception: Traceback (most recent call last):\nRuntimeError: gone\n"


def test_a_small_log_is_kept_as_it_is() -> None:
    """Byte for byte, a last line without an end included."""
    text = START + READY + b"no end"

    assert digest(io.BytesIO(text)) == log_file.Digest(text, 3, 0)


def test_trouble_in_the_middle_of_a_long_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between batches, far from both ends; the count of lines is that of the whole file."""
    monkeypatch.setattr(log_file, "BLOCK", 4096)
    monkeypatch.setattr(log_file, "HEAD", 8192)
    monkeypatch.setattr(log_file, "TAIL", 8192)
    text = START + READY + BATCH * 2000 + DEATH + BATCH * 2000

    found = digest(io.BytesIO(text))

    assert len(found.data) < len(text) / 10 and found.data.startswith(START) and found.data.endswith(BATCH)
    assert (found.lines, found.lines - found.left_out) == (4004, found.data.count(b"\n"))
    assert judge(from_log("x", found.data, lines=found.lines)).name == "scheduler-died-exception"


def test_a_bar_that_shares_a_line_with_trouble_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks write over each other."""
    monkeypatch.setattr(log_file, "BLOCK", 4096)
    monkeypatch.setattr(log_file, "HEAD", 4096)
    monkeypatch.setattr(log_file, "TAIL", 4096)
    mixed = b"Capturing: 10%|# | 1/8 [00:01<00:07,  1.0it/s][2026-11-29 18:50:00] Scheduler hit an exception: x\n"

    found = digest(io.BytesIO(START + BATCH * 200 + mixed + BATCH * 200))

    assert mixed in found.data


def test_memory_does_not_grow_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 MiB of news and of batches, of which a tenth is kept."""
    for name, size in (("BLOCK", 1 << 16), ("HEAD", 1 << 17), ("TAIL", 1 << 16), ("MIDDLE", 1 << 18)):
        monkeypatch.setattr(log_file, name, size)
    blocks = [b"[2026-11-29 17:50:00] something else than a batch\n" * 1300] * 64 + [BATCH * 600] * 64
    total = sum(map(len, blocks))
    tracemalloc.start()
    try:
        digest(io.BufferedReader(_Blocks(blocks)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < total / 3


def test_a_line_without_an_end_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that only redraws itself, longer than a block."""
    monkeypatch.setattr(log_file, "BLOCK", 1024)
    text = START + b"Loading: 10%\r" * 1000

    assert digest(io.BytesIO(text)).data == text


def test_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long log, growing, with its size as the end."""
    monkeypatch.setattr(log_file, "BLOCK", 1024)
    monkeypatch.setattr(log_file, "HEAD", 1024)
    told: list[Event] = []

    digest(io.BytesIO(BATCH * 1000), size=len(BATCH) * 1000, emit=told.append)

    done = [event.done for event in told if isinstance(event, Progress)]
    assert len(done) > 3 and done == sorted(done) and done[-1] <= len(BATCH) * 1000


class _Blocks(io.RawIOBase):
    """A stream of blocks that are not all in memory at once."""

    def __init__(self, blocks: list[bytes]) -> None:
        self._blocks, self._at, self._rest = blocks, 0, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._rest and self._at < len(self._blocks):
            self._rest, self._at = self._blocks[self._at], self._at + 1
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
