"""Verb after verb from one interpreter: a client that has several questions pays for one start.

Each line on standard input is a request with its ``verb``; its reply is that of the verb called alone. Every verb runs
in a child of its own, so that none can leave anything behind for the next one, and one that is killed takes the
interpreter with it: the client sees the same end as of a verb called alone.
"""

import os
import sys
from collections.abc import Callable
from typing import BinaryIO

_NO_REPLY = 3


def serve(requests: BinaryIO, prepare: "Callable[[bytes], None]", answer: "Callable[[bytes], int]") -> int:
    """Answer until the client leaves.

    Args:
        requests: a line each.
        prepare: loads what an answer needs, once for all that come after it.
        answer: writes the reply; its result is the exit status of a verb called alone.
    """
    for line in requests:
        prepare(line)
        pid = os.fork()
        if pid == 0:
            _end(answer, line)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code < 0:
            os.kill(os.getpid(), -code)
        if code not in (0, 1):  # there was no reply
            return abs(code)
    return 0


def _end(answer: "Callable[[bytes], int]", line: bytes) -> None:
    """The child: answer and be gone, without the parent's unread input or its clean-up."""
    code = _NO_REPLY
    try:
        code = answer(line)
        sys.stderr.flush()
    finally:
        os._exit(code)
