"""Which rows of a forward pass belong to which sample."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsops.core import dumps
from hsops.payload.hsops_hs_dump import rows, writers
from hsops.payload.hsops_hs_dump.rows import Piece, Ticket, place, ticket_for


def test_requests_lie_one_after_the_other() -> None:
    """The foreign request in the middle owns rows too, and gives none."""
    first, last = Ticket("a", 3), Ticket("b", 2)

    pieces, failures = place([first, None, last], [3, 5, 2], [0, 0, 0])

    assert pieces == [Piece(first, 0, 0, 3, True), Piece(last, 8, 0, 2, True)]
    assert not failures and first.over and last.over


def test_a_chunked_prompt_is_assembled_by_position() -> None:
    """Its chunks come in other places of other passes."""
    ticket, other = Ticket("a", 10), Ticket("b", 4)

    passes = [place([ticket], [4], [0]), place([other, ticket], [4, 4], [0, 4]), place([ticket], [2], [8])]

    mine = [p for pieces, _ in passes for p in pieces if p.ticket is ticket]
    assert [(p.row, p.position, p.count, p.last) for p in mine] == [(0, 0, 4, False), (4, 4, 4, False), (0, 8, 2, True)]


def test_rows_from_a_cache_fail_the_sample() -> None:
    """A first pass that starts at 7 means that 7 rows were never computed for this request."""
    ticket = Ticket("a", 10)

    pieces, (failure,) = place([ticket], [3], [7])

    assert not pieces and "first 7 rows" in failure.reason and ticket.over


def test_a_hole_in_the_middle_fails_the_sample_once() -> None:
    """What still comes of it is ignored."""
    ticket = Ticket("a", 10)
    place([ticket], [3], [0])

    _, failures = place([ticket], [3], [5])
    again = place([ticket], [2], [8])

    assert [f.reason for f in failures] == ["rows 3 to 4 never came"]
    assert again == ([], [])


def test_two_requests_of_one_id_in_a_pass_fail_it() -> None:
    """Only the id is known there, so the rows of one would be taken for the other's; a third request is not touched."""
    ticket, other = Ticket("a", 6), Ticket("b", 1)

    pieces, failures = place([ticket, other, ticket], [6, 1, 3], [0, 0, 0])

    assert [(f.ticket, f.reason) for f in failures] == [(ticket, rows.TWICE)] and ticket.over
    assert [(p.ticket, p.row) for p in pieces] == [(other, 6)]


def test_a_retracted_request_gives_each_row_once() -> None:
    """It starts again at 0, with its own first output behind the prompt."""
    ticket = Ticket("a", 6)
    place([ticket], [4], [0])

    pieces, failures = place([ticket], [7], [0])
    later = place([ticket], [8], [0])

    assert [(p.row, p.position, p.count, p.last) for p in pieces] == [(4, 4, 2, True)]
    assert not failures and later == ([], [])


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 16), st.randoms())
def test_every_row_comes_exactly_once_whatever_the_chunks(totals: list[int], chunk: int, random: object) -> None:
    """Any packing of chunks into passes covers each prompt from 0 to T in order."""
    tickets = [Ticket(str(i), total) for i, total in enumerate(totals)]
    done = [0] * len(totals)
    seen: dict[str, list[tuple[int, int]]] = {ticket.id: [] for ticket in tickets}

    while any(have < ticket.total for have, ticket in zip(done, tickets, strict=True)):
        batch = [t for t in tickets if done[int(t.id)] < t.total][: random.randint(1, 3)]  # type: ignore[attr-defined]
        lengths = [min(chunk, t.total - done[int(t.id)]) for t in batch]
        pieces, failures = place(batch, lengths, [done[int(t.id)] for t in batch])
        assert not failures
        for piece in pieces:
            seen[piece.ticket.id].append((piece.position, piece.count))
        for ticket, length in zip(batch, lengths, strict=True):
            done[int(ticket.id)] += length

    for ticket in tickets:
        position = 0
        for start, count in seen[ticket.id]:
            assert start == position
            position += count
        assert position == ticket.total and ticket.over


@pytest.mark.parametrize("rid", ["HEALTH_CHECK_1", "x-1", "hs-", "hs-../x", "hs-a/b", "hs-" + "x" * 161, "hs-\n", None])
def test_only_our_ids_that_are_safe_file_names_get_a_ticket(rid: object) -> None:
    """Health probes, warm-up and other people's requests are none of ours."""
    assert ticket_for(rid, 3) is None


def test_both_ends_agree_on_what_an_id_is() -> None:
    """The payload cannot import hsops, so the two say it twice."""
    assert rows.SAMPLE_ID.pattern == dumps.SAMPLE_ID.pattern
    assert (rows.PREFIX, rows.CHECK_PREFIX) == (dumps.RID_PREFIX, dumps.CHECK_PREFIX)
    assert writers.CHECK == dumps.CHECK_FOLDER
    held = ticket_for("hs-a.1", 3)
    assert held is not None and (held.id, held.total, held.check) == ("a.1", 3, False)
    check = ticket_for("hscheck-a.1", 3)
    assert check is not None and (check.id, check.check) == ("a.1", True) and check.key != held.key
