"""What a real terminal gets: its width is kept, colour is there when it is wanted, a pipe has neither."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts import run_dir

ESCAPE = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
LOG = Path(__file__).parents[1] / "cases/logs/watchdog-0.5.9-tp2.log"
WORDS = ("diagnose", "--log", str(LOG), "--tp", "2")


def on_a_terminal(*words: str, columns: int, **env: str) -> str:
    """What hsops shows on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    size = {"COLUMNS": str(columns), "LINES": "40", "TERM": "xterm-256color"}
    with os.fdopen(ours, "rb", buffering=0) as screen:
        child = subprocess.Popen(
            [sys.executable, "-m", "hsops", *words],
            stdin=theirs, stdout=theirs, stderr=theirs, env={**run_dir(), **size, **env},
        )  # fmt: skip
        os.close(theirs)
        shown = b""
        while piece := read(screen.fileno()):
            shown += piece
        child.wait(60)
    return shown.decode()


def read(descriptor: int) -> bytes:
    """A piece; nothing when the other end is closed, which Linux tells as an error."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_a_verdict_fits_the_terminal(columns: int) -> None:
    """No line is longer, and none is cut: a wide one uses what reads well, 116 columns."""
    shown = ESCAPE.sub("", on_a_terminal(*WORDS, columns=columns))

    longest = max(len(line) for line in shown.splitlines())
    assert "HUNG  watchdog-timeout" in shown
    assert longest <= columns
    assert longest > min(columns, 116) * 0.7


def test_colour_is_for_terminals_that_want_it() -> None:
    """Neither with --no-color nor with NO_COLOR, nor on a dumb terminal, nor in a pipe."""
    piped = subprocess.run(
        [sys.executable, "-m", "hsops", *WORDS], capture_output=True, env=run_dir(), timeout=60, check=False
    ).stdout

    assert "\x1b[1;31mHUNG\x1b[0m" in on_a_terminal(*WORDS, columns=100)
    assert "\x1b" not in on_a_terminal(*WORDS, "--no-color", columns=100)
    assert "\x1b" not in on_a_terminal(*WORDS, columns=100, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(*WORDS, columns=100, TERM="dumb")
    assert b"\x1b" not in piped and max(map(len, piped.decode().splitlines())) <= 118
