"""extract.plan and extract.ledger: what to send, and when there is room for it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hsops.core.dumps import Sample, token_bytes, token_hash
from hsops.core.errors import ConfigError, HsopsError, SpaceError, UsageError
from hsops.core.inventory import HsDumpPatch, ServerSpec
from hsops.core.prompts import Prompt
from hsops.extract.extract import plan_of
from hsops.extract.job import Drained, Job
from hsops.extract.ledger import Ledger, TooLargeError
from hsops.extract.plan import HEADER_BYTES, Capture, RowSize, capture_of, plan, row_size
from hsops.extract.settle import limits_of, refused
from hsops.remote.dumps import News
from tests.running import wait_for
from tests.samples import SAMPLE as BASE

WANTED = Capture((1, 3), "pre-norm")
PROMPT = Prompt("a", 4, token_bytes([5, 6, 7]))
SAMPLE = replace(BASE, hidden_size=64, bytes=2000, token_hash=token_hash(token_bytes([5, 6, 7])))


def nowhere(_: Sample) -> str:
    """Of prompts without a fault nobody asks."""
    raise AssertionError


def test_what_has_its_dump_is_done_and_what_failed_is_tried_again() -> None:
    """A rerun sends only what is missing, in the file's order."""
    prompts = [PROMPT, replace(PROMPT, id="b", line=5), replace(PROMPT, id="c", line=6)]
    failed = replace(SAMPLE, id="b", status="failed", checksum="", bytes=0)

    result = plan(prompts, {"a": SAMPLE, "b": failed}, WANTED, file="p.jsonl", where=nowhere)

    assert [p.id for p in result.todo] == ["b", "c"]
    assert (result.done, result.faults) == ((SAMPLE,), ())


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"tokens": 4}, "with 4 tokens; the prompt has 3"),
        ({"token_hash": "sha256:0000000000000000"}, "with other token ids"),
        ({"boundaries": (1, 4)}, "with boundaries 1, 4, final pre-norm; wanted are boundaries 1, 3, final pre-norm"),
        ({"final": "none"}, "with boundaries 1, 3, final none; wanted are boundaries 1, 3, final pre-norm"),
    ],
)
def test_a_dump_of_something_else_under_the_same_id_is_a_fault(changes: dict[str, object], why: str) -> None:
    """It is neither taken for done nor overwritten; the prompt's line is named."""
    result = plan([PROMPT], {"a": replace(SAMPLE, **changes)}, WANTED, file="p.jsonl", where=lambda s: f"h:/d/{s.id}")  # type: ignore[arg-type]

    (fault,) = result.faults
    assert (fault.file, fault.line) == ("p.jsonl", 4)
    assert fault.message == f"there is a dump of 'a' already in h:/d/a, {why}"


def test_a_dump_without_token_hash_is_told_by_its_length() -> None:
    """An older writer: the best there is."""
    assert plan([PROMPT], {"a": replace(SAMPLE, token_hash="")}, WANTED, file="p", where=nowhere).done


@pytest.mark.parametrize(
    "on_host, at_home, told",
    [(True, True, "h:/shm/d and /data/d"), (True, False, "h:/shm/d"), (False, True, "/data/d")],
)
def test_the_folders_with_a_dump_of_something_else_are_named(on_host: bool, at_home: bool, told: str) -> None:
    """The one that is drained to, too: nothing on the host would have to be removed."""
    other = {"a": replace(SAMPLE, token_hash="sha256:0000000000000000")}
    place = SimpleNamespace(
        capture=WANTED, server="s", folder="/shm/d", agent=SimpleNamespace(host=SimpleNamespace(name="h"))
    )
    listings = {"s": SimpleNamespace(samples=other if on_host else {})}
    drained = Drained(Path("/data/d"), other if at_home else {}, lambda: None)
    job = Job((place,), Path("p.jsonl"), (PROMPT,), 1, drained=drained)  # type: ignore[arg-type]

    with pytest.raises(ConfigError) as caught:
        plan_of(job, listings)  # type: ignore[arg-type]

    (fault,) = caught.value.faults
    assert fault.message == f"there is a dump of 'a' already in {told}, with other token ids"


def test_capture_comes_from_the_servers_patch() -> None:
    """Sorted, as the manifest has it; a server without the patch captures nothing."""
    patches = {"hs": HsDumpPatch(name="hs", boundaries=(3, 1, 3))}
    server = ServerSpec(name="s", host="h", model="/m", patches=("hs",))

    assert capture_of(server, patches) == WANTED
    with pytest.raises(UsageError):
        capture_of(server.model_copy(update={"patches": ()}), patches)


def test_sizes_are_tokens_times_slots_times_hidden_times_item() -> None:
    """Plus eight bytes a token id and the header."""
    size = row_size([replace(SAMPLE, dtype="F32"), SAMPLE])

    assert size == RowSize(64, 2)
    assert size.sample_bytes(10, WANTED) == 10 * 3 * 64 * 2 + 80 + HEADER_BYTES
    assert row_size([replace(SAMPLE, status="failed")]) is None


@pytest.mark.parametrize(
    "tokens, vocabulary, message",
    [
        (3, None, "3 tokens; s takes fewer than 3"),
        (4, 7, "input_ids[2]: 7 is beyond the model's vocabulary of 7"),
        (4, 8, None),
        (None, None, None),
    ],
)
def test_prompts_that_the_server_cannot_take(tokens: int | None, vocabulary: int | None, message: str | None) -> None:
    """SGLang refuses the limit itself, and says nothing about ids beyond the vocabulary."""
    limits = limits_of("s", {"max_req_input_len": tokens}, {"vocab_size": vocabulary})

    found = [str(fault) for fault in refused([PROMPT], limits, file="p")]

    assert found == ([f"p:4:1: {message}"] if message else [])


def ledger(*samples: Sample, free: int = 1 << 30, total: int = 1 << 30, patience: float = 60.0) -> Ledger:
    """A ledger that knows ``samples``."""
    return Ledger(WANTED, samples, free=free, total=total, patience=patience)


def in_thread(work: object) -> threading.Thread:
    """Start something that will block."""
    thread = threading.Thread(target=work, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_a_line_wakes_its_waiter_and_an_old_line_does_not() -> None:
    """A retry must not take the failed line of the attempt before for its own."""
    held = ledger()
    held.apply(News(samples=(replace(SAMPLE, status="failed"),)))
    mark = held.mark("a")

    assert held.wait("a", mark, 0.01) is None
    held.apply(News(samples=(SAMPLE,)))
    assert held.wait("a", mark, 5) is SAMPLE


def test_the_first_sample_teaches_the_size() -> None:
    """Nothing is known before the first dump: one prompt goes alone."""
    held = ledger()
    held.admit("a", 3)
    second = threading.Event()
    thread = in_thread(lambda: (held.admit("b", 3), second.set()))

    assert not second.wait(0.1)
    held.apply(News(samples=(SAMPLE,)))
    held.leave("a", 2000)

    assert second.wait(5)
    thread.join(5)


def test_room_is_reserved_and_given_back() -> None:
    """Dumps under way count before statvfs can see them; 2 % stay free."""
    need = RowSize(64, 2).sample_bytes(3, WANTED)
    held = ledger(SAMPLE, free=2 * need + 200, total=10_000)
    held.admit("a", 3)
    held.admit("b", 3)
    third = threading.Event()
    thread = in_thread(lambda: (held.admit("c", 3), third.set()))

    assert not third.wait(0.1)
    held.apply(News(space=(4 * need, 10_000)))

    assert third.wait(5)
    thread.join(5)


def test_a_file_system_that_stays_full_ends_it_with_a_reason() -> None:
    """When nothing is under way and nobody makes room, waiting would be for ever."""
    with pytest.raises(SpaceError, match=r"2,000 bytes free.*nobody made room in 0 s"):
        ledger(SAMPLE, free=2000, total=10_000, patience=0.02).admit("a", 3)


def test_a_sample_larger_than_the_file_system_is_not_waited_for() -> None:
    """No eviction will ever make room for it: neither beside others, nor alone; the largest that fits is admitted."""
    need = RowSize(64, 2).sample_bytes(30, WANTED)
    total = next(total for total in range(need, 2 * need) if total - total // 50 == need)
    held = ledger(SAMPLE, free=total, total=total)

    for other in ("", "b"):
        if other:
            held.admit(other, 3)
        with pytest.raises(TooLargeError, match=rf"dump of \d+,\d+ bytes is too large .* has {total:,} with \d+ kept"):
            held.admit("a", 31)
    held.leave("b", 0)
    held.admit("a", 30)


def test_a_full_file_system_is_waited_for_while_somebody_makes_room() -> None:
    """Patience counts from the last byte that became free, not from the start; then the sample passes."""
    need = RowSize(64, 2).sample_bytes(3, WANTED)
    held = ledger(SAMPLE, free=0, total=10_000, patience=1.0)
    passed, started = threading.Event(), time.monotonic()
    thread = in_thread(lambda: (held.admit("a", 3), passed.set()))
    wait_for(lambda: held.is_short, "it waits for room")

    free = 0
    while time.monotonic() - started < 2.0:  # longer than the patience
        free += 1
        held.apply(News(space=(free, 10_000)))
        assert not passed.wait(0.01)
    held.apply(News(space=(need + 200, 10_000)))

    assert passed.wait(5)
    assert not held.is_short
    thread.join(5)


def test_free_bytes_that_come_and_go_are_no_room_being_made() -> None:
    """Another program's files on the same disk: only more than was ever free counts."""
    held = ledger(SAMPLE, free=1000, total=10_000, patience=0.5)
    ended = threading.Event()

    def admit() -> None:
        with pytest.raises(SpaceError):
            held.admit("a", 3)
        ended.set()

    thread = in_thread(admit)
    deadline = time.monotonic() + 30
    while not ended.wait(0.01) and time.monotonic() < deadline:
        for free in (900, 1000):
            held.apply(News(space=(free, 10_000)))

    assert ended.is_set()
    thread.join(5)


def test_a_fatal_error_wakes_everybody() -> None:
    """The first error counts."""
    held = ledger(SAMPLE)
    raised: list[HsopsError] = []

    def wait() -> None:
        try:
            held.wait("a", 0, 60)
        except HsopsError as error:
            raised.append(error)

    thread = in_thread(wait)
    first = HsopsError("the server died")
    held.fail(first)
    held.fail(HsopsError("and something else"))
    thread.join(5)

    assert raised == [first]
