"""The script around every command."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsops.core.command import Command
from hsops.remote.shell import Prologue, ended, exit_status, wrap


@given(st.lists(st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])), min_size=1))
def test_one_line_is_one_command_for_any_login_shell(words: list[str]) -> None:
    """Nothing in it means anything to csh or fish; decoded and split it is the argument list again."""
    envelope = wrap(Command(("printf", *words)), b"abc")

    *_, quoted = shlex.split(envelope.line)
    decoded = re.sub(r"\\0(\d{3})", lambda m: chr(int(m[1], 8)), quoted).encode("latin-1").decode()
    assert shlex.split(decoded) == ["exec", *envelope.argv]
    assert envelope.argv[4] == "3"
    assert set(quoted).isdisjoint("'!\n") and quoted.isascii() and "\\\\" not in quoted


def test_two_calls_have_two_marks() -> None:
    """A command cannot guess its mark."""
    assert wrap(Command(("true",))).mark != wrap(Command(("true",))).mark


@given(st.binary(max_size=40), st.binary(max_size=40), st.lists(st.integers(0, 100), max_size=6))
def test_noise_before_the_mark_is_dropped_however_it_arrives(noise: bytes, output: bytes, cuts: list[int]) -> None:
    """In any pieces, with the mark cut in two."""
    mark = b"hsops-0123456789abcdef\n"
    data = noise + mark + output
    prologue = Prologue(mark)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]

    got = b"".join(prologue.strip(data[a:b]) for a, b in pairwise(places))

    assert (got, prologue.over, prologue.noise) == (output, True, noise)


def test_output_without_a_mark_is_all_noise() -> None:
    """The command never began."""
    prologue = Prologue(b"mark\n")

    assert prologue.strip(b"This account is not available.\n") == b""
    assert not prologue.over


@pytest.mark.parametrize("code, exit_", [(0, 0), (1, 1), (127, 127), (128, 128), (137, -9), (143, -15), (255, 255)])
def test_a_shells_status_tells_of_signals(code: int, exit_: int) -> None:
    """128 + n is signal n."""
    assert exit_status(code) == exit_


@pytest.mark.parametrize(
    "stderr, expected",
    [
        (b"oops\nM\n", (b"oops\n", True)),
        (b"M\nlate", (b"late", True)),
        (b"oops", (b"oops", False)),
        (b"", (b"", False)),
    ],
)
def test_the_mark_after_the_errors_is_the_end(stderr: bytes, expected: tuple[bytes, bool]) -> None:
    """What a process left behind writes later does not hide it."""
    assert ended(stderr, b"M\n") == expected
