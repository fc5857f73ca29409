"""fetch.plan: what is missing, changed, resumed, damaged."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from hsops.core.dumps import Sample
from hsops.fetch.plan import (
    FILES,
    LARGEST,
    SMALLEST,
    Held,
    Plan,
    Stamp,
    Transfer,
    cut,
    part_name,
    plan,
    streams_for,
)
from tests.samples import SAMPLE

A = SAMPLE
B = replace(A, id="b", bytes=2000, checksum="xxh3:bbbbbbbbbbbbbbbb")
STAMP = Stamp(1000, 5, 6)


def planned(
    remote: list[Sample],
    held: dict[str, Held] | None = None,
    files: dict[str, Stamp] | None = None,
    parts: dict[str, int] | None = None,
    checked: dict[str, bool] | None = None,
) -> Plan:
    """A plan with everything that is not given empty."""
    return plan({s.id: s for s in remote}, held or {}, files or {}, parts or {}, checked or {})


def test_an_empty_folder_gets_everything_but_failed_samples() -> None:
    """A failed sample has no file."""
    result = planned([A, B, replace(A, id="c", status="failed", bytes=0, checksum="")])

    assert result.transfers == (Transfer(A, 0, "new"), Transfer(B, 0, "new"))
    assert result.bytes_to_send == 3000


def test_nothing_to_do_when_the_stamp_is_as_it_was() -> None:
    """Neither network nor disk is read for a file that nobody touched."""
    result = planned([A], {"a": Held(A, STAMP)}, {"a": STAMP})

    assert (result.done, result.transfers, result.check) == (("a",), (), ())


@pytest.mark.parametrize("stamp", [None, Stamp(1000, 5, 7), Stamp(1000, 4, 6)])
def test_a_touched_file_is_read_before_it_is_believed(stamp: Stamp | None) -> None:
    """Same size, other times: its content decides, whole or damaged."""
    held, files = {"a": Held(A, stamp)}, {"a": STAMP}

    assert planned([A], held, files).check == (A,)
    assert planned([A], held, files, checked={"a": True}).adopt == (A,)
    assert planned([A], held, files, checked={"a": False}).transfers == (Transfer(A, 0, "damaged"),)


def test_recheck_reads_an_untouched_file_once() -> None:
    """After the check the file is adopted, not checked for ever."""
    held, files = {"a": Held(A, None)}, {"a": STAMP}

    result = planned([A], held, files, checked={"a": True})

    assert (result.check, result.adopt) == ((), (A,))


def test_a_whole_file_without_a_line_is_adopted() -> None:
    """A kill between rename and manifest line costs no second transfer."""
    assert planned([A], files={"a": STAMP}).check == (A,)
    assert planned([A], files={"a": STAMP}, checked={"a": True}).adopt == (A,)


def test_a_file_of_another_size_is_damaged_without_reading_it() -> None:
    """Truncated files are told by their size."""
    result = planned([A], {"a": Held(A, STAMP)}, {"a": Stamp(999, 5, 6)})

    assert result.transfers == (Transfer(A, 0, "damaged"),)


def test_a_lost_file_is_sent_again() -> None:
    """The manifest alone is not a dump."""
    assert planned([A], {"a": Held(A, STAMP)}).transfers == (Transfer(A, 0, "lost"),)


def test_other_content_on_the_host_is_sent() -> None:
    """A sample that was extracted again replaces the local one."""
    newer = replace(A, checksum="xxh3:cccccccccccccccc", bytes=1200)

    assert planned([newer], {"a": Held(A, STAMP)}, {"a": STAMP}).transfers == (Transfer(newer, 0, "changed"),)


def test_other_content_of_the_same_size_is_read_first() -> None:
    """After a kill between rename and line the file may be the new one already."""
    newer = replace(A, checksum="xxh3:cccccccccccccccc")
    held, files = {"a": Held(A, STAMP)}, {"a": STAMP}

    assert planned([newer], held, files).check == (newer,)
    assert planned([newer], held, files, checked={"a": False}).transfers == (Transfer(newer, 0, "changed"),)


def test_a_dump_of_another_prompt_is_a_conflict() -> None:
    """Two prompt lists with the same ids must not overwrite each other's dumps."""
    other = replace(A, token_hash="sha256:2222222222222222", checksum="xxh3:dddddddddddddddd")

    assert planned([other], {"a": Held(A, STAMP)}, {"a": STAMP}).conflicts == ("a",)
    assert planned([replace(other, token_hash="")], {"a": Held(A, STAMP)}, {"a": STAMP}).conflicts == ()


def test_a_part_of_this_very_content_is_continued() -> None:
    """Only the missing bytes are sent; a part that has them all sends none."""
    assert planned([A], parts={part_name(A): 400}).transfers == (Transfer(A, 400, "new"),)
    assert planned([A], parts={part_name(A): 1000}).transfers == (Transfer(A, 1000, "new"),)
    assert planned([A], parts={part_name(A): 400}).bytes_to_send == 600


def test_parts_that_nobody_continues_are_stale() -> None:
    """Of an older content, too long, or of a file that is whole."""
    older = part_name(replace(A, checksum="xxh3:eeeeeeeeeeeeeeee"))

    result = planned([A, B], {"b": Held(B, STAMP)}, parts={older: 10, part_name(A): 1001, part_name(B): 5})

    assert result.stale_parts == tuple(sorted([older, part_name(A)]))
    assert result.transfers == (Transfer(A, 0, "new"), Transfer(B, 5, "lost"))


def requests(count: int, size: int, streams: int) -> list[int]:
    """Bytes of each request for ``count`` files of ``size`` bytes; every file must be in exactly one, in order."""
    transfers = tuple(Transfer(replace(A, id=f"s{i}", bytes=size), 0, "new") for i in range(count))
    todo, left, made = deque(transfers), count * size, list[tuple[Transfer, ...]]()
    while request := cut(todo, left, streams):
        made.append(request)
        left -= sum(t.left for t in request)
    assert [t for request in made for t in request] == list(transfers)
    return [sum(t.left for t in request) for request in made]


def test_requests_shrink_towards_the_end() -> None:
    """So that all streams are done at the same time; before that they are large."""
    sizes = requests(20_000, 100_000, 4)

    assert sizes[0] == FILES * 100_000
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= SMALLEST
    assert requests(100, 10 << 20, 4)[0] == LARGEST // (10 << 20) * (10 << 20)


def test_a_request_has_a_file_however_large_and_not_too_many_however_small() -> None:
    """One that is larger than a request goes alone."""
    assert requests(3, 10 * LARGEST, 4) == [10 * LARGEST] * 3
    assert requests(1000, 1, 4) == [FILES, FILES, FILES, 1000 - 3 * FILES]
    assert requests(0, 1, 4) == []


def test_parts_that_are_complete_are_still_asked_for() -> None:
    """A file of which nothing is left to send must be settled too."""
    transfers = tuple(Transfer(replace(A, id=f"s{i}"), 1000, "new") for i in range(50))

    assert cut(deque(transfers), 0, 4) == transfers


@pytest.mark.parametrize(
    "count, size, most, streams",
    [(16, 64 << 20, 4, 4), (16, 64 << 20, 1, 1), (10, 1 << 20, 4, 1), (40, 1 << 20, 4, 3), (2, 1 << 30, 8, 2)],
)
def test_streams_are_opened_where_they_are_worth_it(count: int, size: int, most: int, streams: int) -> None:
    """Not one for a few MiB, and none without a file."""
    assert streams_for([Transfer(replace(A, id=f"s{i}", bytes=size), 0, "new") for i in range(count)], most) == streams
