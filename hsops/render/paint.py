"""A terminal's colour and width. Colour only repeats what a line says: without it nothing is lost."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import TextIO

_RED, _GREEN, _YELLOW, _BOLD, _OFF = "\x1b[1;31m", "\x1b[1;32m", "\x1b[33m", "\x1b[1m", "\x1b[0m"
_COLOURS = {
    "HUNG": _RED, "DOWN": _RED, "FAIL": _RED, "stalled": _RED, "OK": _GREEN, "healthy": _GREEN,
    "WAIT": _YELLOW, "UNKNOWN": _YELLOW, "warn": _YELLOW, "warning:": _YELLOW,
}  # fmt: skip
# a word that a line begins with, perhaps behind the host's name
_WORD = re.compile(r"^((?:\S+  |\S+: |  )?)(HUNG  |DOWN  |FAIL  |stalled  |OK  |WAIT  |UNKNOWN  |warn  |warning: )")
_HEALTHY = re.compile(r"^()(healthy)(?= after )")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LABEL = re.compile(r"^(  )(fix:|try)(?= )")


def wanted(stream: TextIO) -> bool:
    """The stream is a terminal that shows colour, and nobody asked for none: https://no-color.org."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(line: str) -> str:
    """A line with its telling word coloured."""
    for pattern in (_WORD, _HEALTHY):
        if found := pattern.match(line):
            word = found[2].rstrip()
            return f"{found[1]}{_COLOURS[word]}{word}{_OFF}{line[found.end(1) + len(word) :]}"
    return _LABEL.sub(rf"\1{_BOLD}\2{_OFF}", line)


def plain(line: str) -> str:
    """A line that does nothing to a terminal: titles of processes, file names and logs come from anybody."""
    return _CONTROL.sub("?", line)


def alarm(line: str) -> str:
    """An error's first line."""
    return f"{_RED}{line}{_OFF}"


def columns(most: int) -> int:
    """How wide text may be that is wrapped: ``most``, on a narrower terminal its width."""
    return max(40, min(most, shutil.get_terminal_size().columns)) if sys.stdout.isatty() else most
