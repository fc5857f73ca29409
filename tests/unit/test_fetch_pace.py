"""fetch.pace: more streams while they bring more; and no more bytes than allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hsops.core.errors import UsageError
from hsops.fetch.pace import AGAIN_S, FIRST, Pace, Streams, parse_streams
from hsops.fetch.throttle import Throttle, parse_rate

HUGE = 1 << 40


def drive(pace: Pace, rate: Callable[[int], float], seconds: float, *, start: float = 0.0) -> list[int]:
    """The wanted number every half second, on a network that gives ``rate(streams)`` bytes a second."""
    moved, wanted, seen = 0.0, pace.wanted, list[int]()
    for step in range(int(seconds * 2)):
        wanted = pace.look(start + step / 2, int(moved), wanted)
        moved += rate(wanted) / 2
        seen.append(wanted)
    return seen


def test_streams_are_added_while_each_brings_its_own() -> None:
    """A long way: every stream has its window full."""
    assert drive(Pace(Streams(2, 16), HUGE), lambda n: n * 1e7, 20)[-1] == 16


def test_a_far_host_is_asked_through_all_at_once() -> None:
    """Unless there is little to bring."""
    assert Pace(Streams(2, 16), HUGE, far=True).wanted == 16
    assert Pace(Streams(2, 16), 3 * FIRST, far=True).wanted == 3


def test_small_files_near_by_get_no_more_than_asked_for() -> None:
    """Each costs this process more than the line: a stream more would only wait. Far away the line is what waits."""
    assert drive(Pace(Streams(2, 16), HUGE, small=True), lambda n: n * 1e7, 20)[-1] == 2
    assert Pace(Streams(8, 8), HUGE, small=True).wanted == 8
    assert Pace(Streams(2, 16), HUGE, small=True, far=True).wanted == 16


def test_streams_that_bring_nothing_are_given_up() -> None:
    """A short way: two fill it. It is tried, and not tried again at once."""
    seen = drive(Pace(Streams(2, 16), HUGE), lambda n: min(n, 2) * 1e8, 20)

    assert max(seen) == 4 and seen[-1] == 2
    assert seen.count(4) <= 6


def test_it_is_tried_again_later() -> None:
    """A network may have become free."""
    pace = Pace(Streams(2, 16), HUGE)
    drive(pace, lambda n: min(n, 2) * 1e8, 20)

    assert drive(pace, lambda n: n * 1e8, 2 * AGAIN_S, start=20.0)[-1] == 16


def test_nothing_is_judged_before_all_of_them_flow() -> None:
    """A stream that is being opened brings nothing yet."""
    pace = Pace(Streams(2, 8), HUGE)

    assert [pace.look(t, 0, 1) for t in range(10)] == [2] * 10


def test_the_host_lets_in_no_more() -> None:
    """Then that is the limit for a while, whatever they would bring; sshd also drops some while many log in."""
    pace = Pace(Streams(2, 16), HUGE)
    drive(pace, lambda n: n * 1e7, 5)
    pace.limit(3, 5.0)

    assert max(drive(pace, lambda n: n * 1e7, AGAIN_S - 1, start=5.0)) == 3
    assert drive(pace, lambda n: n * 1e7, AGAIN_S, start=5.0 + AGAIN_S)[-1] == 16


@pytest.mark.parametrize("most, left", [(9, 8), (7, 7), (2, 2), (0, 2)])
def test_a_limit_is_never_less_than_was_asked_for(most: int, left: int) -> None:
    """Nor more than there were."""
    pace = Pace(Streams(2, 8), HUGE, far=True)
    pace.limit(most, 1.0)

    assert (pace.wanted, pace.most) == (left, left)


@pytest.mark.parametrize("total, most", [(0, 1), (1, 1), (FIRST, 1), (FIRST + 1, 2), (100 * FIRST, 8), (None, 8)])
def test_no_stream_that_is_not_worth_its_connection(total: int | None, most: int) -> None:
    """Not one for a few MiB; all of them when it is not known what will come."""
    assert Pace(Streams(8, 8), total).wanted == most


@pytest.mark.parametrize("text, least, most", [("4", 4, 4), ("2..8", 2, 8), ("1..1", 1, 1)])
def test_how_many_are_wanted(text: str, least: int, most: int) -> None:
    """One number, or a range."""
    assert parse_streams(text) == Streams(least, most)


@pytest.mark.parametrize("text", ["", "0", "8..2", "65", "a", "1..", "-1", "1...2"])
def test_what_is_no_number_of_streams(text: str) -> None:
    """Told before anything is done."""
    with pytest.raises(UsageError):
        parse_streams(text)


def test_a_limit_holds_for_all_callers_together() -> None:
    """Whatever the sizes, a second's bytes take a second; a pause saves nothing up."""
    clock = [100.0]

    def pause(seconds: float) -> None:
        clock[0] += seconds

    throttle = Throttle(1000.0, pause, lambda: clock[0])
    for count in (1, 499, 500, 1000):
        throttle.take(count)
    assert clock[0] == pytest.approx(102.0)
    clock[0] += 60
    throttle.take(1000)
    assert clock[0] == pytest.approx(163.0)


@pytest.mark.parametrize("text, rate", [("", 0), ("50M", 50 << 20), ("1.5g", 1.5 * (1 << 30)), ("200K", 200 << 10)])
def test_rates(text: str, rate: float) -> None:
    """In binary units, as sizes are shown."""
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["0", "M", "-5M", "fast", "5T"])
def test_what_is_no_rate(text: str) -> None:
    """Told before anything is done."""
    with pytest.raises(UsageError):
        parse_rate(text)
