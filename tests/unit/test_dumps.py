"""core.dumps: the manifest's one reader."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from hsops.core.dumps import Sample, latest, parse_sample, token_bytes, token_hash
from hsops.core.errors import BadDataError
from tests.samples import SAMPLE

OK = replace(SAMPLE, id="s1", bytes=400, checksum="xxh3:0123456789abcdef", token_hash="sha256:0011223344556677")
FAILED = replace(OK, status="failed", bytes=0, checksum="", reason="a row was lost", token_hash="")


def line(sample: Sample = OK, **changes: object) -> str:
    """A manifest line as the payload writes it."""
    return json.dumps({**asdict(sample), **changes})


def test_a_line_reads_back_as_it_was_written() -> None:
    """Every field survives, unknown keys of a newer writer are left alone."""
    assert parse_sample(line(extra=1)) == OK
    assert parse_sample(line(FAILED)) == FAILED


def test_a_writer_without_token_hash_is_read() -> None:
    """The hash is optional: capture packages before it are still understood."""
    raw = json.loads(line())
    del raw["token_hash"]

    assert parse_sample(json.dumps(raw)).token_hash == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "../etc/passwd"},
        {"id": "a/b"},
        {"id": ".hidden"},
        {"id": "s1\n"},
        {"id": ""},
        {"id": "x" * 161},
        {"tokens": "3"},
        {"tokens": True},
        {"tokens": 0},
        {"bytes": -1},
        {"status": "done"},
        {"final": "after"},
        {"checksum": "md5:00"},
        {"checksum": ""},
        {"boundaries": [1, "3"]},
        {"boundaries": None},
        {"token_hash": 7},
    ],
)
def test_what_a_line_may_not_say(changes: dict[str, object]) -> None:
    """Names from a host are not trusted, and a field of another type is an error, not a guess."""
    with pytest.raises(BadDataError):
        parse_sample(line(**changes))


def test_blanks_around_a_line_are_no_matter() -> None:
    """Another writer may leave some."""
    assert parse_sample(f" {line()}\r") == OK


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"s1"', "[" * 5000, line() + "}", line() + line()])
def test_what_is_no_line(text: str) -> None:
    """Torn and foreign lines are refused."""
    with pytest.raises(BadDataError):
        parse_sample(text)


def test_a_retry_replaces_a_failure_and_a_failure_never_hides_a_dump() -> None:
    """The manifest is append-only: the reader decides which line counts."""
    newer = replace(OK, checksum="xxh3:ffffffffffffffff")

    assert latest([FAILED, OK]) == {"s1": OK}
    assert latest([OK, FAILED]) == {"s1": OK}
    assert latest([OK, newer]) == {"s1": newer}


def test_shape_counts_the_final_state() -> None:
    """[T, K+1, H] with the final state, [T, K, H] without."""
    assert OK.shape == (3, 3, 8)
    assert replace(OK, final="none").shape == (3, 2, 8)
    assert (replace(OK, final="post-norm").shape, replace(OK, final="post-norm").last_shape) == ((3, 2, 8), (3, 8))
    assert (replace(OK, final="both").shape, replace(OK, final="both").last_shape) == ((3, 3, 8), (3, 8))
    assert OK.last_shape is None


def test_token_hash_is_over_little_endian_int64() -> None:
    """What a capture package in another process must reproduce."""
    assert token_bytes([1, 258]) == b"\x01\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0"
    assert token_hash(token_bytes([1, 258])) == "sha256:d4b6538234c2adfd"


@pytest.mark.parametrize("key", ["id", "status", "final", "checksum", "tokens", "boundaries", "token_hash"])
def test_a_message_about_a_line_stays_one_however_large_the_line(key: str) -> None:
    """A megabyte of the host's nonsense is not printed to the terminal."""
    raw = {
        **dict.fromkeys(("dtype", "reason", "run", "patch", "sglang"), "x"),
        "id": "a",
        "status": "ok",
        "final": "none",
        "checksum": "crc32:00000000",
        "token_hash": "",
        "tokens": 1,
        "hidden_size": 1,
        "bytes": 1,
        "boundaries": [1],
        key: "x" * 1_000_000 if key != "token_hash" else [1] * 1_000_000,
    }

    with pytest.raises(BadDataError) as caught:
        parse_sample(json.dumps(raw))

    assert len(caught.value.message) < 200
