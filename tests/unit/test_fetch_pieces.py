"""fetch.pieces: every byte is asked for once, in requests of the right size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hsops.fetch.pieces import FILES, LARGEST, LAST, SLICE, SMALLEST, WHOLE, Piece, Pieces
from hsops.fetch.plan import Kept, Part, Transfer
from tests.unit.test_fetch_plan import A

MIB = 1 << 20


def transfers(count: int, size: int, done: int = 0) -> tuple[Transfer, ...]:
    """Files of which ``done`` bytes are here."""
    return tuple(
        Transfer(replace(A, name=f"s{i}", part=f"s{i}.part", bytes=size), Part(done), "new") for i in range(count)
    )


def requests(pieces: Pieces, streams: int) -> list[tuple[Piece, ...]]:
    """All of them."""
    made = list[tuple[Piece, ...]]()
    while request := pieces.take(streams):
        made.append(request)
    return made


def test_requests_shrink_towards_the_end() -> None:
    """So that all streams are done at the same time; before that they are large."""
    sizes = [sum(p.left for p in r) for r in requests(Pieces(transfers(20_000, 100_000)), 4)]

    assert sum(sizes) == 20_000 * 100_000
    assert sizes[0] == FILES * 100_000
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= SMALLEST


def test_not_too_many_files_in_one_request() -> None:
    """However small they are."""
    assert [len(r) for r in requests(Pieces(transfers(1000, 1)), 4)] == [FILES, FILES, FILES, 1000 - 3 * FILES]
    assert not Pieces().take(4)


def test_parts_that_are_complete_are_still_asked_for() -> None:
    """A file of which nothing is left to send must be settled too."""
    pieces = Pieces(transfers(50, 1000, 1000))

    assert len(pieces.take(4)) == 50


@pytest.mark.parametrize("size, streams", [(2048 * MIB, 4), (WHOLE + 1, 1), (WHOLE + 1, 8), (512 * MIB, 8)])
def test_a_large_file_is_cut_without_a_gap(size: int, streams: int) -> None:
    """The pieces follow each other from the first byte to the last, none of them small but the last."""
    pieces = Pieces(transfers(1, size))
    made = [p for r in requests(pieces, streams) for p in r]

    assert [p.start for p in made] == [0, *(p.end for p in made[:-1])]
    assert made[-1].end == size
    assert all(LAST <= p.left <= LARGEST for p in made[:-1])
    assert len(made) >= streams and not any(p.alone for p in made)
    assert [pieces.settle(p) for p in made] == [False] * (len(made) - 1) + [True]
    assert pieces.over


def test_files_stay_whole_while_there_are_enough_of_them() -> None:
    """Their checksum is then known when their last byte is; the last few are shared by all streams."""
    made = [p for r in requests(Pieces(transfers(40, 100 * MIB)), 4) for p in r]

    assert all(p.alone for p in made[:30])
    assert any(not p.alone for p in made[-8:])
    assert sum(p.left for p in made) == 4000 * MIB


def test_a_part_that_came_in_one_goes_on_in_several() -> None:
    """The first piece's checksum begins at the file's first byte: nothing proves the bytes that were here."""
    made = [p for r in requests(Pieces(transfers(1, 512 * MIB, 100 * MIB)), 4) for p in r]

    assert (made[0].start, made[0].at) == (0, 100 * MIB)
    assert sum(p.left for p in made) == 412 * MIB


def test_a_part_in_pieces_is_asked_for_its_gaps() -> None:
    """And is whole when they are here."""
    kept = (Kept(0, 10 * MIB, "x"), Kept(20 * MIB, 30 * MIB, "x"))
    pieces = Pieces([Transfer(replace(A, bytes=40 * MIB), Part(30 * MIB, kept), "new")])
    made = [p for r in requests(pieces, 1) for p in r]

    assert [(p.start, p.end) for p in made] == [(10 * MIB, 20 * MIB), (30 * MIB, 40 * MIB)]
    assert [pieces.settle(p) for p in made] == [False, True]


def test_what_did_not_come_is_taken_again() -> None:
    """Also by another stream, and it is not over before."""
    pieces = Pieces(transfers(2, 1000))
    first = pieces.take(1)
    pieces.give_back(first)

    assert not pieces.over
    again = pieces.take(1)
    assert {id(p) for p in again} == {id(p) for p in first}
    for piece in again:
        pieces.settle(piece)
    assert pieces.over


def test_it_is_not_over_before_what_came_is_handed_on() -> None:
    """Whoever ends when it is over would miss the last files."""
    pieces = Pieces(transfers(2, 1000))
    taken = pieces.take(1)

    assert pieces.came(taken) == [True, True] and not pieces.over
    pieces.done(1)
    assert not pieces.over
    pieces.done(1)
    assert pieces.over


def test_more_may_come_until_it_is_closed() -> None:
    """A follower adds files; an empty queue is not the end."""
    pieces = Pieces(closed=False)

    assert not pieces.take(1) and not pieces.over
    pieces.add(transfers(1, 10))
    assert [pieces.settle(p) for p in pieces.take(1)] == [True]
    assert not pieces.over
    pieces.close()
    assert pieces.over


def test_a_newer_version_of_a_cut_file_is_whole_when_its_own_pieces_are() -> None:
    """One that came before, and one that is under way still, count for themselves; the older one comes too late."""
    (old,), newer = transfers(1, 64 * MIB), replace(A, name="s0", part="newer", bytes=64 * MIB)
    pieces = Pieces([old], closed=False)
    first = [p for r in requests(pieces, 2) for p in r]
    assert pieces.is_latest(old.file) and len(first) > 1
    assert [pieces.settle(p) for p in first[:-1]] == [False] * (len(first) - 1)

    pieces.add([Transfer(newer, Part(0), "changed")])
    second = [p for r in requests(pieces, 2) for p in r]

    assert pieces.settle(second[0]) is False
    assert pieces.settle(first[-1]) is True and not pieces.is_latest(old.file)
    assert [pieces.settle(p) for p in second[1:]] == [False] * (len(second) - 2) + [True]
    pieces.add([old])
    assert [pieces.settle(p) for r in requests(pieces, 2) for p in r][-2:] == [False, True]


def test_what_is_on_its_way_is_not_asked_for_twice() -> None:
    """Two would write to one part file."""
    pieces = Pieces(transfers(1, 1000), closed=False)
    pieces.add(transfers(1, 1000))

    assert (len(pieces.take(1)), pieces.total, pieces.files) == (1, 1000, 1)


def test_of_a_file_that_will_not_come_no_more_is_asked_for() -> None:
    """Others stay; what is under way ends by itself."""
    big, small = transfers(1, 40 * SLICE)[0], transfers(2, 5)[1]
    pieces = Pieces([big, small])
    first = [pieces.take(4)[0], pieces.take(4)[0]]
    assert {p.transfer for p in first} == {big}

    pieces.abandon(first[0])

    (rest,) = pieces.take(4)
    assert (rest.transfer, pieces.left, pieces.waits) == (small, 0, False)
    pieces.settle(first[1])
    assert not pieces.over and pieces.settle(rest) and pieces.over
