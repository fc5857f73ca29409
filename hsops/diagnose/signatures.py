"""Words in a log that name a cause: what a row is, and the rows that only say that something died.

The order is: precise causes (``signature_table``), then these, then echoes of a death elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HIGH, MEDIUM, LOW = "high", "medium", "low"


@dataclass(frozen=True, slots=True)
class Signature:
    """One row.

    Args:
        name: the class.
        pattern: searched line by line.
        confidence: of the class when these words are there.
        remedy: what to do.
        source: where the words were seen.
        stage: only when the log stopped in this stage; empty for any.
        also: another pattern that must stand somewhere in the log; empty for none.
        terminal: the server cannot serve after this line, even where /health still answers 200.
        versions: of SGLang whose words these are, as read in its wheels (``make flags``), ``FROM-TO`` and what else is
            to say behind a colon; empty for the words of others.
        likes: classes that say the same words, the likeliest first.
    """

    name: str
    pattern: re.Pattern[str]
    confidence: str
    remedy: str
    source: str
    stage: str = ""
    also: str = ""
    terminal: bool = False
    versions: str = ""
    likes: tuple[str, ...] = ()


def row(
    name: str,
    pattern: str,
    confidence: str,
    remedy: str,
    source: str,
    *,
    stage: str = "",
    also: str = "",
    terminal: bool = False,
    versions: str = "",
    likes: tuple[str, ...] = (),
) -> Signature:
    """A row as data is written."""
    words = re.compile(pattern, re.MULTILINE)
    return Signature(name, words, confidence, remedy, source, stage, also, terminal, versions, likes)


DIED = row(
    "scheduler-died-exception",
    r"(Scheduler|TpModelWorker\w*) hit an exception",
    HIGH,
    "read the traceback in the log: hsops logs",
    "SGLang scheduler.py",
    terminal=True,
    versions="0.5.4-0.5.23",
)
CRASHED = row(
    "scheduler-died-exception",
    r"Process group watchdog thread terminated with exception: CUDA error"
    r"|Fatal Python error: (Aborted|Segmentation fault|Illegal instruction)|^Segmentation fault",
    MEDIUM,
    "CUDA_LAUNCH_BLOCKING=1 shows which kernel; dmesg for Xid lines",
    "torch ProcessGroupNCCL, faulthandler; sglang#14193",
    terminal=True,
    likes=("crash-under-load", "xid-kernel-fault"),
)
WARMUP_FAILED = row(
    "warmup-failed",
    r"Initialization failed\. warmup error",
    MEDIUM,
    "read the exception of the scheduler above this line",
    "SGLang http_server.py",
    terminal=True,
    versions="0.5.4-0.5.23",
)
NAN = row(
    "nan-output",
    r"probability tensor contains either",
    HIGH,
    "another GEMM or attention backend; clear the JIT caches after an upgrade",
    "flashinfer#2708",
)
ECHO = re.compile(
    r"Connection (closed|reset) by peer|Connection cl$|transport/tcp/pair\.cc"
    r"|there are other ranks that didn't finish loading",
    re.MULTILINE,
)
"""A rank that complains of another one's death, or absence."""
