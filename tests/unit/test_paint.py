"""Colour repeats what a line says, and only on a terminal."""

from __future__ import annotations

import re

import pytest

from hsops.render.paint import alarm, paint

ESCAPES = re.compile(r"\x1b\[[\d;]*m")


@pytest.mark.parametrize(
    "line,coloured",
    [
        ("HUNG  warmup-deadlock-busy-wait   confidence high", "HUNG"),
        ("OK  healthy   confidence high", "OK"),
        ("rtx8  FAIL  pid 4121 holds 71 GB", "FAIL"),
        ("rtx8  warn  /dev/shm holds 252 GB", "warn"),
        ("lab: stalled  no milestone", "stalled"),
        ("  warning: run 1130 of tiny still runs", "warning:"),
        ("healthy after 0:39 · run 1201", "healthy"),
        ("  fix: hsops stop", "fix:"),
        ("  try        hsops deploy --revert", "try"),
        ("OKAY  this is no verdict", ""),
        ("a line about what is DOWN  there", ""),
        ("train.jsonl  FAIL", ""),
    ],
)
def test_the_telling_word_is_coloured_and_no_other(line: str, coloured: str) -> None:
    """The line itself stays as it is."""
    shown = paint(line)

    assert ESCAPES.sub("", shown) == line
    assert (ESCAPES.split(shown)[1] if "\x1b" in shown else "") == coloured
    assert ESCAPES.sub("", alarm(line)) == line
