"""What ``hsops verify --live`` asks of servers of different sizes."""

import pytest

from hsops.verify.live.plan import BATCH, CUT, FIRST, LARGE, Call, Room, plan, prompts, room_of

BIG = Room(prompt=200_000, cache=400_000, chunk=8192, requests=64, page=1, vocabulary=163_840)
LAB = Room(prompt=506, cache=1843, chunk=8192, requests=4, page=1, vocabulary=256)


def call_of(room: Room, name: str) -> Call:
    """The call of that name in the plan."""
    (found,) = [call for call in plan(room).calls if call.name == name]
    return found


def test_a_real_server_gets_a_batch_beyond_what_fusion_covers() -> None:
    """300 tokens in a pass of more than 2,048, and cut by the end of a chunk of 8,192."""
    made = plan(BIG)

    assert made.subject == 300
    assert not made.skipped
    assert call_of(BIG, BATCH).tokens(300) > LARGE + 300
    cut = call_of(BIG, CUT)
    assert sum(cut.before[1:]) + 150 == BIG.chunk
    assert not cut.after


def test_a_small_server_gets_what_fits_and_is_told_why_not_the_rest() -> None:
    """The lab: prompts of 506 tokens, four at once, a chunk larger than its cache."""
    made, batch = plan(LAB), call_of(LAB, BATCH)

    assert made.subject == 300
    assert len(batch.before) + 1 + len(batch.after) <= LAB.requests
    assert 600 <= batch.tokens(300) <= LAB.cache
    assert "8,192 tokens cannot be filled" in made.skipped[CUT]
    assert "506 tokens, 4 at once" in made.skipped[CUT]


@pytest.mark.parametrize("chunk", [32, 64, 256, 2048])
def test_a_short_chunk_makes_a_short_prompt(chunk: int) -> None:
    """Everything still fits into one pass, and the cut still falls into the prompt."""
    room = Room(prompt=2000, cache=8000, chunk=chunk, requests=16, page=1, vocabulary=1000)
    made, batch, cut = plan(room), call_of(room, BATCH), None

    assert batch.tokens(made.subject) <= chunk
    if made.subject // 2 - FIRST >= room.page:
        cut = call_of(room, CUT)
        before = sum(cut.before[1:])
        assert before < chunk < before + made.subject
        assert FIRST + before < chunk  # even when the first request is computed in the same pass
    else:
        assert "no whole page" in made.skipped[CUT]


def test_without_chunks_nothing_is_cut() -> None:
    """--chunked-prefill-size -1."""
    made = plan(Room(prompt=2000, cache=8000, chunk=None, requests=16, page=1, vocabulary=1000))

    assert "off" in made.skipped[CUT]
    assert [call.name for call in made.calls] == ["alone", "again", "scored", "batch"]


def test_one_request_at_a_time_has_no_batch() -> None:
    """--max-running-requests 1."""
    made = plan(Room(prompt=2000, cache=8000, chunk=512, requests=1, page=1, vocabulary=1000))

    assert set(made.skipped) == {BATCH, CUT}
    assert "1 at once" in made.skipped[BATCH]


def test_a_server_without_room_is_not_asked_at_all() -> None:
    """Nothing can be said with prompts of a few tokens."""
    made = plan(Room(prompt=4, cache=100, chunk=None, requests=1, page=1, vocabulary=1000))

    assert (made.subject, made.calls) == (0, ())


def test_the_prompt_is_the_same_in_every_call_and_the_others_are_not() -> None:
    """P lies behind the ones before it; ids stay inside the vocabulary."""
    batch = call_of(LAB, BATCH)
    alone, many = prompts(Call("alone"), 300, 256), prompts(batch, 300, 256)

    assert alone[0] == many[len(batch.before)]
    assert [len(ids) for ids in many] == [*batch.before, 300, *batch.after]
    assert many[0] != many[1][: len(many[0])]
    assert all(3 <= token < 256 for ids in many for token in ids)
    assert prompts(batch, 300, 256) == many


def test_limits_are_read_from_the_server() -> None:
    """The smallest of what bounds a pass counts; the effective number of requests, not the argument."""
    info = {
        "max_req_input_len": 507,
        "max_total_num_tokens": 2048,
        "chunked_prefill_size": 8192,
        "max_prefill_tokens": 4096,
        "max_running_requests": None,
        "page_size": 16,
        "internal_states": [{"effective_max_running_requests_per_dp": 7}],
    }

    assert room_of(info, {"vocab_size": 256}) == Room(506, 1843, 4096, 7, 16, 256)


def test_limits_that_are_not_told_are_taken_to_be_small() -> None:
    """No server is asked for more than it may take."""
    assert room_of({}, {"vocab_size": None}) == Room(511, 459, None, 4, 1, 256)
