"""core.prompt_lines: packed files and pipes; what is damaged is told with its place, and a bomb stays small."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from hsops.core import prompt_files
from hsops.core import prompt_lines as module
from hsops.core.errors import ConfigError
from hsops.core.prompt_files import read_prompts
from hsops.core.prompt_lines import zstd

LINES = b"".join(b'{"id": "p-%d", "input_ids": [%d, 2]}\n' % (i, i) for i in range(20_000))
CHECKED = {zstd.CompressionParameter.checksum_flag: 1}  # as the zstd tool packs
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": lambda data: zstd.compress(data, options=CHECKED),
}


def faults(path: Path) -> list[tuple[int, str]]:
    """(line, message) of every fault."""
    with pytest.raises(ConfigError) as caught:
        read_prompts(path)
    return [(fault.line, fault.message) for fault in caught.value.faults]


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("name", ["p.jsonl", "p.{kind}"])
def test_packed_files_are_read(tmp_path: Path, kind: str, name: str) -> None:
    """Whatever they are called, and of several parts one after the other, as the tools append them."""
    path = tmp_path / name.format(kind=kind)
    half = LINES.index(b"\n", len(LINES) // 2) + 1
    path.write_bytes(PACK[kind](LINES[:half]) + PACK[kind](LINES[half:]))

    found = read_prompts(path)

    assert [(prompt.id, prompt.line) for prompt in found] == [(f"p-{i}", i + 1) for i in range(20_000)]
    assert found[-1].ids().tolist() == [19_999, 2]


@pytest.mark.parametrize("kind", PACK)
def test_a_packed_file_that_is_cut_short_is_no_whole_one(tmp_path: Path, kind: str) -> None:
    """Wherever it is cut: one fault, after the last line that came."""
    packed = PACK[kind](LINES)
    for cut in (5, len(packed) // 2, len(packed) - 1):
        path = tmp_path / f"cut.{kind}"
        path.write_bytes(packed[:cut])

        ((line, message),) = faults(path)

        assert "the packed file is cut short (after byte" in message
        assert (line > 1_000) == (cut > 5)


@pytest.mark.parametrize("kind", PACK)
def test_a_damaged_packed_file_is_told(tmp_path: Path, kind: str) -> None:
    """A changed byte in the middle, and what follows that is no packed data."""
    packed = bytearray(PACK[kind](LINES))
    packed[len(packed) // 2] ^= 0xFF
    (tmp_path / "changed").write_bytes(packed)
    (tmp_path / "more").write_bytes(PACK[kind](LINES) + b"garbage that is no frame")

    assert "damaged" in faults(tmp_path / "changed")[0][1]
    assert faults(tmp_path / "more")[-1][0] == 20_001
    assert "damaged" in faults(tmp_path / "more")[-1][1]


def test_faults_before_the_damage_are_told_too(tmp_path: Path) -> None:
    """All at once, the damage first: it may be why the others are there."""
    (tmp_path / "p.gz").write_bytes(gzip.compress(b"{}\n" + LINES)[:-4])

    assert [line for line, _ in faults(tmp_path / "p.gz")] == [20_002, 1, 1]


@pytest.mark.parametrize("kind", PACK)
def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Neither one line without end nor empty lines without end: little memory, and an end soon."""
    monkeypatch.setattr(module, "UNASKED", 1 << 18)
    monkeypatch.setattr(module, "LONGEST_LINE", 1 << 18)
    for filling in (b" ", b"\n"):
        path = tmp_path / f"bomb.{kind}"
        path.write_bytes(PACK[kind](filling * (24 << 20)))
        tracemalloc.start()

        told = faults(path)

        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert "no prompts are like that" in told[0][1]
        assert peak < 12 << 20


def test_nothing_but_repetition_is_no_bomb(tmp_path: Path) -> None:
    """Made-up prompts pack a thousandfold."""
    line = b'{"id": "p", "input_ids": [' + b"1," * 1_000_000 + b"1]}\n"
    path = tmp_path / "p.zst"
    path.write_bytes(zstd.compress(line))
    assert len(line) > module.MOST_TIMES * path.stat().st_size

    assert read_prompts(path)[0].count == 1_000_001


@pytest.mark.parametrize("pack", [bytes, *PACK.values()])
def test_a_pipe_is_read_once_and_kept(pack: Callable[[bytes], bytes]) -> None:
    """A playbook looks at its prompts before it begins, and again later."""
    out, into = os.pipe()
    feeder = threading.Thread(target=lambda: os.fdopen(into, "wb", closefd=True).write(pack(LINES)))
    feeder.start()
    path = f"/dev/fd/{out}"
    try:
        first, second = read_prompts(path), read_prompts(path)
    finally:
        feeder.join()
        os.close(out)
        prompt_files._piped.pop(path, None)

    assert len(first) == 20_000
    assert second == first


def test_standard_input(tmp_path: Path) -> None:
    """``-``: packed or not; a fault of it has a place."""
    code = "import sys; from hsops.core.prompt_files import read_prompts as r; print(len(r('-')), len(r('-')))"
    for data in (LINES, gzip.compress(LINES)):
        done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, timeout=60, check=True)
        assert done.stdout == b"20000 20000\n"

    done = subprocess.run([sys.executable, "-c", code], input=b"{\n", capture_output=True, timeout=60, check=False)

    assert b"stdin:1:2: not JSON" in done.stderr


def test_a_disk_that_fails_is_not_a_damaged_file() -> None:
    """Its own words."""

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 100:
                raise OSError(5, "Input/output error")
            return super().read(100 if size is None or size > 100 else size)

    with pytest.raises(OSError, match="Input/output error"):
        list(module.lines(Failing(gzip.compress(LINES))))
