"""fetch.plan: what is missing, changed, resumed, damaged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hsops.fetch.dumps import file_of
from hsops.fetch.plan import File, Held, Kept, Part, Plan, Stamp, Transfer, plan
from tests.samples import SAMPLE

A = file_of(SAMPLE, "{}")
B = file_of(replace(SAMPLE, id="b", bytes=2000, checksum="xxh3:bbbbbbbbbbbbbbbb"), "{}")
NEW = Part(0)
STAMP = Stamp(1000, 5, 6)


def planned(
    remote: list[File],
    held: dict[str, Held] | None = None,
    files: dict[str, Stamp] | None = None,
    parts: dict[str, Part] | None = None,
    checked: dict[str, bool] | None = None,
) -> Plan:
    """A plan with everything that is not given empty."""
    return plan({f.name: f for f in remote}, held or {}, files or {}, parts or {}, checked or {})


def test_an_empty_folder_gets_everything() -> None:
    """All of it, and that is what must fit."""
    result = planned([A, B])

    assert result.transfers == (Transfer(A, NEW, "new"), Transfer(B, NEW, "new"))
    assert result.bytes_to_send == 3000


def test_nothing_to_do_when_the_stamp_is_as_it_was() -> None:
    """Neither network nor disk is read for a file that nobody touched."""
    result = planned([A], {A.name: Held(A, STAMP)}, {A.name: STAMP})

    assert (result.done, result.transfers, result.check) == ((A,), (), ())


@pytest.mark.parametrize("stamp", [None, Stamp(1000, 5, 7), Stamp(1000, 4, 6)])
def test_a_touched_file_is_read_before_it_is_believed(stamp: Stamp | None) -> None:
    """Same size, other times: its content decides, whole or damaged."""
    held, files = {A.name: Held(A, stamp)}, {A.name: STAMP}

    assert planned([A], held, files).check == (A,)
    assert planned([A], held, files, checked={A.name: True}).adopt == (A,)
    assert planned([A], held, files, checked={A.name: False}).transfers == (Transfer(A, NEW, "damaged"),)


def test_recheck_reads_an_untouched_file_once() -> None:
    """After the check the file is adopted, not checked for ever."""
    held, files = {A.name: Held(A, None)}, {A.name: STAMP}

    result = planned([A], held, files, checked={A.name: True})

    assert (result.check, result.adopt) == ((), (A,))


def test_a_whole_file_without_a_line_is_adopted() -> None:
    """A kill between rename and manifest line costs no second transfer."""
    assert planned([A], files={A.name: STAMP}).check == (A,)
    assert planned([A], files={A.name: STAMP}, checked={A.name: True}).adopt == (A,)


def test_a_file_of_another_size_is_damaged_without_reading_it() -> None:
    """Truncated files are told by their size."""
    result = planned([A], {A.name: Held(A, STAMP)}, {A.name: Stamp(999, 5, 6)})

    assert result.transfers == (Transfer(A, NEW, "damaged"),)


def test_a_lost_file_is_sent_again() -> None:
    """The manifest alone is not a dump."""
    assert planned([A], {A.name: Held(A, STAMP)}).transfers == (Transfer(A, NEW, "lost"),)


def test_other_content_on_the_host_is_sent() -> None:
    """A sample that was extracted again replaces the local one."""
    newer = file_of(replace(SAMPLE, checksum="xxh3:cccccccccccccccc", bytes=1200), "{}")

    assert planned([newer], {A.name: Held(A, STAMP)}, {A.name: STAMP}).transfers == (Transfer(newer, NEW, "changed"),)


def test_other_content_of_the_same_size_is_read_first() -> None:
    """After a kill between rename and line the file may be the new one already."""
    newer = file_of(replace(SAMPLE, checksum="xxh3:cccccccccccccccc"), "{}")
    held, files = {A.name: Held(A, STAMP)}, {A.name: STAMP}

    assert planned([newer], held, files).check == (newer,)
    assert planned([newer], held, files, checked={A.name: False}).transfers == (Transfer(newer, NEW, "changed"),)


def test_a_dump_of_another_prompt_is_a_conflict() -> None:
    """Two prompt lists with the same ids must not overwrite each other's dumps."""
    other = file_of(replace(SAMPLE, token_hash="sha256:2222222222222222", checksum="xxh3:dddddddddddddddd"), "{}")

    assert planned([other], {A.name: Held(A, STAMP)}, {A.name: STAMP}).conflicts == ("a",)
    assert planned([replace(other, prompt="")], {A.name: Held(A, STAMP)}, {A.name: STAMP}).conflicts == ()


def test_a_part_of_this_very_content_is_continued() -> None:
    """Only the missing bytes are sent; a part that has them all sends none."""
    assert planned([A], parts={A.part: Part(400)}).transfers == (Transfer(A, Part(400), "new"),)
    assert planned([A], parts={A.part: Part(1000)}).transfers == (Transfer(A, Part(1000), "new"),)
    assert planned([A], parts={A.part: Part(400)}).bytes_to_send == 600


def test_parts_that_nobody_continues_are_stale() -> None:
    """Of an older content, too long, or of a file that is whole."""
    older = file_of(replace(SAMPLE, checksum="xxh3:eeeeeeeeeeeeeeee"), "{}").part

    result = planned([A, B], {B.name: Held(B, STAMP)}, parts={older: Part(10), A.part: Part(1001), B.part: Part(5)})

    assert result.stale_parts == tuple(sorted([older, A.part]))
    assert result.transfers == (Transfer(A, NEW, "new"), Transfer(B, Part(5), "lost"))


@pytest.mark.parametrize(
    "kept, gaps",
    [
        ((), ((0, 1000),)),
        (((0, 400),), ((400, 1000),)),
        (((400, 600), (0, 100)), ((100, 400), (600, 1000))),
        (((0, 1000),), ((1000, 1000),)),
        (((0, 600), (500, 1000)), ((1000, 1000),)),
    ],
)
def test_what_a_part_in_pieces_misses(kept: tuple[tuple[int, int], ...], gaps: tuple[tuple[int, int], ...]) -> None:
    """Whatever the order in which they came; of one that misses nothing the empty rest is asked for."""
    transfer = Transfer(A, Part(1000, tuple(Kept(start, end, "") for start, end in kept)), "new")

    assert transfer.gaps == gaps
    assert transfer.left == sum(end - start for start, end in gaps)


@pytest.mark.parametrize("kept", [Kept(0, 2000, ""), Kept(5, 5, ""), Kept(900, 800, "")])
def test_a_list_of_pieces_that_cannot_be_is_not_believed(kept: Kept) -> None:
    """Start again at the first byte."""
    assert planned([A], parts={A.part: Part(1000, (kept,))}).transfers == (Transfer(A, NEW, "new"),)


def test_a_file_that_only_its_inode_tells_from_another() -> None:
    """No checksum is known before it came: one that is here without a line is not believed, one with a line is read
    against the checksum with which it came.
    """
    tree = replace(A, checksum="", version="1000-5-7")
    came = replace(tree, checksum="xxh3:1111111111111111")

    assert planned([tree], files={A.name: STAMP}).transfers[0].why == "damaged"
    assert planned([tree], {A.name: Held(came, STAMP)}, {A.name: STAMP}).done == (came,)
    assert planned([tree], {A.name: Held(came, None)}, {A.name: STAMP}).check == (came,)
    newer = replace(tree, version="1000-6-7")
    assert planned([newer], {A.name: Held(came, STAMP)}, {A.name: STAMP}).transfers[0].why == "changed"


def test_the_only_copy_is_never_replaced() -> None:
    """The host was freed of the version that is here, and makes another under its name; a dump is made anew."""
    tree = replace(A, checksum="", version="1000-5-7")
    came, newer = replace(tree, checksum="xxh3:1111111111111111"), replace(tree, version="1000-6-8")
    arguments: Any = ({A.name: newer}, {A.name: Held(came, STAMP)}, {A.name: STAMP}, {}, {})
    gone = {A.name: "1000-5-7"}

    assert (plan(*arguments, only=gone).only_here, plan(*arguments, only=gone).transfers) == ((newer,), ())
    assert plan({A.name: newer}, {}, {A.name: STAMP}, {}, {}, only=gone).only_here == (newer,)
    assert plan({A.name: newer}, *arguments[1:2], {}, {}, {}, only=gone).transfers  # it was moved away
    assert plan(*arguments, only={A.name: "1000-4-6"}).transfers  # what is here came later
    assert plan({A.name: tree}, *arguments[1:], only=gone).done == (came,)
    dump = replace(A, checksum="xxh3:2", version="xxh3:2")
    held = {A.name: Held(replace(A, checksum="xxh3:1", version="xxh3:1"), STAMP)}
    assert not plan({A.name: dump}, held, {A.name: STAMP}, {}, {}, only={A.name: "xxh3:1"}).only_here
