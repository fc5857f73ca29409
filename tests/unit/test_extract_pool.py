"""extract.pool and extract.gate: who gets which prompt when, and what becomes of it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import pytest

from hsops.core.dumps import token_bytes
from hsops.core.events import ignore
from hsops.core.prompts import Prompt
from hsops.extract.gate import Gate, capacity
from hsops.extract.journal import Journal
from hsops.extract.pool import Attempt, Failure, Item, Pool, Tally, pause
from tests.samples import SAMPLE

GONE = Attempt(reason="gone wrong")


class Clock:
    """Seconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def pool(count: int, clock: Clock | None = None) -> Pool:
    """Of ``count`` prompts p0, p1, ...; no pause is left to chance."""
    prompts = [Prompt(f"p{i}", i + 1, token_bytes([i])) for i in range(count)]
    return Pool(prompts, Journal(None, ignore), now=clock or Clock(), dice=lambda: 1.0)


def take(from_: Pool, server: str = "a") -> Item:
    """One that is there."""
    item = from_.take(lambda: False, server)
    assert item
    return item


def test_prompts_come_in_order_and_a_failed_one_later() -> None:
    """Its pause holds up nobody: the others go first."""
    clock = Clock()
    held = pool(3, clock)
    first = take(held)
    held.settle(first, GONE, "a")

    assert [take(held).prompt.id, take(held).prompt.id] == ["p1", "p2"]
    clock.time += 0.5
    assert take(held) is first


def test_pauses_grow_to_half_a_minute_and_no_two_are_alike() -> None:
    """Half of each is left to chance, so that a thousand prompts do not come back at one moment."""
    assert [pause(n, 1.0) for n in (1, 2, 3, 7, 100)] == [0.5, 1.0, 2.0, 30.0, 30.0]
    assert pause(3, 0.0) == 1.0


def test_three_failures_are_the_end_and_busy_ones_do_not_count() -> None:
    """The last reason is told, with the number of times that it was sent and to whom."""
    clock = Clock()
    held = pool(1, clock)
    for attempt in (*[Attempt(reason="later", busy=True)] * 5, GONE, GONE, replace(GONE, reason="for good")):
        clock.time += 60
        held.settle(take(held), attempt, "b")

    assert held.settled
    assert held.failures == [Failure("p0", 1, 8, "for good", "b")]


def test_a_server_that_is_busy_for_ever_is_not_asked_for_ever() -> None:
    """A quarter of an hour."""
    clock = Clock()
    held, times = pool(1, clock), 0
    while not held.settled:
        clock.time += 60
        held.settle(take(held), Attempt(reason="later", busy=True), "b")
        times += 1

    assert times == 30
    assert held.failures[0].reason == "later"


def test_a_refusal_is_final() -> None:
    """It would be refused again."""
    held = pool(1)
    held.settle(take(held), Attempt(reason="no", final=True), "a")

    assert held.failures == [Failure("p0", 1, 1, "no", "a")]


def test_what_fits_nowhere_was_never_sent() -> None:
    """Neither the report nor the journal may claim an attempt."""
    held = pool(1)
    held.settle(take(held), Attempt(reason="too large", final=True, sent=False), "a")

    assert held.failures == [Failure("p0", 1, 0, "too large", "a")]


def test_what_a_dead_server_had_goes_to_another_at_once_and_three_deaths_are_its_own_fault() -> None:
    """A prompt that takes every server down must not take the night; a lost link is nobody's fault."""
    held = pool(2)
    guilty, other = take(held), take(held)
    for _ in range(2):
        held.hand_on([guilty], "a", "died", died=True)
        held.hand_on([other], "a", "cut off", died=False)
        assert {id(take(held)), id(take(held, "b" if guilty.alone else "a"))} == {id(guilty), id(other)}
    held.hand_on([guilty], "b", "died", died=True)
    held.hand_on([other], "a", "cut off", died=False)

    (failure,) = held.failures
    assert (failure.id, failure.attempts) == ("p0", 3)
    assert "3 times" in failure.reason and "died" in failure.reason
    assert take(held) is other


def test_a_prompt_that_kills_its_server_costs_none_of_those_under_way_with_it() -> None:
    """Twice they die together; then each goes alone, after all others, and only the guilty one is given up."""
    held, deaths, done = pool(40), Counter[str](), set[str]()
    while not held.settled:
        out = [take(held)]
        plain = [f"p{i}" for i in range(40) if f"p{i}" not in done and deaths[f"p{i}"] < 2]
        out += [take(held) for _ in range(min(16, len(plain)) - 1)]
        names = {item.prompt.id for item in out}
        if "p3" in names:
            held.hand_on(out, "a", "died", died=True)
            deaths.update(names)
            continue
        for item in out:
            held.settle(item, Attempt(replace(SAMPLE, id=item.prompt.id)), "a")
        done |= names

    assert [failure.id for failure in held.failures] == ["p3"]
    assert (deaths["p3"], len(done)) == (3, 39)
    assert deaths.most_common(2)[1][1] == 2


def test_who_waits_is_woken_by_what_comes_back_and_by_the_end() -> None:
    """All prompts are under way elsewhere: one comes back, the last one is done."""
    held = pool(1)
    item, got = take(held), list[Item | None]()
    thread = threading.Thread(target=lambda: got.extend([held.take(lambda: False, "a"), held.take(lambda: False, "a")]))
    thread.start()

    held.give_back(item, "a")
    held.found(item, SAMPLE, "a")  # by whom does not matter

    thread.join(10)
    assert got in ([item, None], [None, None])
    assert held.total() == held.tally("a") == Tally(1, SAMPLE.tokens, SAMPLE.bytes)


def test_nobody_takes_from_a_closed_pool() -> None:
    """Ctrl-C."""
    held = pool(1)
    held.close()

    assert held.take(lambda: False, "a") is None
    assert not held.pause(60)


def test_a_gate_lets_in_what_fits_and_the_largest_alone() -> None:
    """More tokens than the server holds must not wait for ever."""
    gate, entered = Gate(3, 10), threading.Event()
    large, small, other = (gate.ticket(lambda: False) for _ in range(3))
    assert large and small and other
    assert large.enter(25, lambda: False)
    thread = threading.Thread(target=lambda: small.enter(6, lambda: False) and entered.set())
    thread.start()

    assert not entered.wait(0.1)
    assert not other.enter(4, lambda: True)
    large.leave()
    assert entered.wait(10)
    assert other.enter(4, lambda: False) and gate.inside == 10
    thread.join(10)


def test_a_gate_lets_in_so_many_requests_whatever_they_bring() -> None:
    """A place is given back once, by whoever comes first: the answer, or the end."""
    gate = Gate(2, None)
    first, second = gate.ticket(lambda: False), gate.ticket(lambda: False)
    assert first and second

    assert gate.ticket(lambda: True) is None
    with first:
        assert first.enter(10**9, lambda: True)
        first.leave()
    assert gate.inside == 0
    assert gate.ticket(lambda: True)
    assert gate.ticket(lambda: True) is None


@pytest.mark.parametrize(
    "info, expected",
    [
        ({"max_total_num_tokens": 900, "internal_states": [{"effective_max_running_requests_per_dp": 8}]}, (900, 8)),
        ({"max_total_num_tokens": 900, "dp_size": 2, "internal_states": [{}]}, (1800, None)),
        ({"max_total_num_tokens": None, "internal_states": None}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_capacity_is_what_server_info_says(info: dict[str, object], expected: tuple[int | None, int | None]) -> None:
    """As 0.5.9 and 0.5.23 tell it; a release that tells nothing is not bounded."""
    assert capacity(info) == expected
