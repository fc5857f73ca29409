"""The standard streams as the caller left them: closed, full, ASCII only, or a pipe that nobody reads any more."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from hsops.core.errors import HsopsError


def prepare() -> None:
    """Make all three streams usable, before anything is opened.

    A closed one (``hsops ... >&-``) becomes the null device: otherwise the next file or socket would get its number,
    and child processes would print into that. A character that the terminal lacks becomes ``?``.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:  # the lowest free number
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for good
    sys.stdout = _replacing(sys.stdout, 1)
    sys.stderr = _replacing(sys.stderr, 2)


def write(stream: TextIO, text: str) -> bool:
    """Write and flush; False when the reader has gone (``hsops ... | head``): then nothing more will be shown.

    Raises:
        HsopsError: it cannot be written, a full disk for example.
    """
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        _silence(stream)
        return False
    except OSError as error:
        raise unwritten(stream, error) from None
    return True


def unwritten(stream: TextIO, error: OSError) -> HsopsError:
    """What a refused write is for people. Nothing more will be written there."""
    _silence(stream)
    return HsopsError(f"the output cannot be written: {error.strerror}", fix="see where it is redirected to")


def write_bytes(stream: TextIO, data: bytes) -> bool:
    """The same for bytes as they are."""
    stream.flush()
    with contextlib.suppress(OSError):  # what stays in the buffer makes the next flush fail for the same reason
        stream.buffer.write(data)
    return write(stream, "")


def _replacing(stream: TextIO | None, number: int) -> TextIO:
    stream = stream or open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as above
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    return stream


def _silence(stream: TextIO) -> None:
    """Send the rest nowhere; what is buffered would fail once more when the interpreter ends, with a traceback."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
