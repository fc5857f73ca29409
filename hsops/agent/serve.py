"""Verb after verb from one interpreter: a client that has several questions pays for one start.

Each line on standard input is a request with its ``verb``, or a list of some, whose replies come in that order; a reply
is that of the verb called alone. Every verb runs
in a child of its own, so that none can leave anything behind for the next one, and one that is killed takes the
interpreter with it: the client sees the same end as of a verb called alone.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import BinaryIO

_NO_REPLY = 3


def serve(
    requests: BinaryIO, prepare: "Callable[[bytes], None]", keep: "Callable[[], None]", answer: "Callable[[bytes], int]"
) -> int:
    """Answer until the client leaves.

    Args:
        requests: lines.
        prepare: loads what an answer needs, once for all that come after it.
        keep: puts by what was prepared, for another process; done while an answer is on its way.
        answer: writes the reply; its result is the exit status of a verb called alone.
    """
    for line in (one for several in requests for one in _each(several)):
        prepare(line)
        pid = os.fork()
        if pid == 0:
            _end(answer, line)
        keep()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code < 0:
            os.kill(os.getpid(), -code)
        if code not in (0, 1):  # there was no reply
            return abs(code)
    return 0


def _each(line: bytes) -> "list[bytes]":
    """The requests of a line. What is no list is left to whoever answers it."""
    try:
        several = json.loads(line) if line.startswith(b"[") else None
    except ValueError:
        several = None
    return [json.dumps(one).encode() for one in several] if several else [line]


def _end(answer: "Callable[[bytes], int]", line: bytes) -> None:
    """The child: answer and be gone, without the parent's unread input or its clean-up."""
    code = _NO_REPLY
    try:
        code = answer(line)
        sys.stderr.flush()
    finally:
        os._exit(code)
