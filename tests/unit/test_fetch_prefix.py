"""fetch.prefix: a file that comes in pieces is read once, in whatever order they come."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from hsops.core.checksum import Digest, checksum_of, checksum_of_bytes
from hsops.fetch.prefix import Prefix

DATA = bytes(range(256)) * 40
CUTS = ((0, 3000), (3000, 3001), (3001, 9000), (9000, len(DATA)))


@pytest.mark.parametrize("order", list(itertools.permutations(CUTS)))
def test_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[tuple[int, int], ...]) -> None:
    """The checksum is the file's own, each byte was read once, and none before its piece was there."""
    part, prefix, read = tmp_path / "part", Prefix("xxh3"), list[tuple[int, int]]()
    part.write_bytes(bytes(len(DATA)))
    by_path = Digest.update_from

    def noted(self: Digest, path: Path, start: int = 0, end: int | None = None) -> None:
        read.append((start, len(DATA) if end is None else end))
        by_path(self, path, start, end)

    monkeypatch.setattr(Digest, "update_from", noted)
    for start, end in order:
        with part.open("r+b") as file:
            file.seek(start)
            file.write(DATA[start:end])
        prefix.add(part, start, end)
    found = prefix.finish(part)

    assert found == checksum_of_bytes(DATA, "xxh3")
    assert [end for _, end in read[:-1]] == [start for start, _ in read[1:]] and read[-1][1] == len(DATA)
    assert read[:-1] == [*CUTS]  # all of it before the end was asked for


@pytest.mark.parametrize("kind", ["xxh3", "crc32", "sha256"])
@pytest.mark.parametrize("known", [(), ((3000, 3001),), ((0, 3000),), ((0, 3000), (2000, 5000)), ((0, 0), (0, 3000))])
def test_gaps_and_overlaps(tmp_path: Path, kind: str, known: tuple[tuple[int, int], ...]) -> None:
    """What was not told of, as pieces of an earlier run, is read at the end."""
    part, prefix = tmp_path / "part", Prefix(kind)
    part.write_bytes(DATA)
    for start, end in known:
        prefix.add(part, start, end)

    found = prefix.finish(part)

    assert found == checksum_of(part, kind)
