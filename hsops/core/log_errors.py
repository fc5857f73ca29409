"""Lines that mean trouble: what SGLang, torch, NCCL and the kernel say when a server fails.

Data with sources. ``role`` tells a cause from its echo: a rank that dies makes every other rank complain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hsops.core.log_lines import Record

_STACK = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
KEPT = 50


@dataclass(frozen=True, slots=True)
class Trouble:
    """One kind of line.

    Args:
        id: a stable word for code to decide on.
        pattern: searched in the message.
        role: ``cause``; ``echo`` of a failure elsewhere; ``notice``: not an end by itself.
        source: where the text was seen.
    """

    id: str
    pattern: re.Pattern[str]
    role: str
    source: str


@dataclass(frozen=True, slots=True)
class LogError:
    """Trouble found in a log.

    Args:
        id, role: of its ``Trouble``.
        rank: ``TP1``, or ``""`` for the main process.
        line: from 1.
        time: seconds; None without a stamp.
        text: the line itself.
        last: the last line of the traceback that follows (``RuntimeError: ...``), else ``""``.
        frame: the innermost ``File ..., line N, in f`` of that traceback, else ``""``.
        host: whose log it is in, of a server over several; else ``""``.
    """

    id: str
    role: str
    rank: str
    line: int
    time: float | None
    text: str
    last: str = ""
    frame: str = ""
    host: str = ""

    @property
    def said(self) -> str:
        """The most telling single line: the exception if there is one."""
        return self.last or self.text


def _row(name: str, pattern: str, source: str, *, role: str = "cause") -> Trouble:
    return Trouble(name, re.compile(pattern), role, source)


TROUBLES = (
    _row("scheduler-exception", r"^Scheduler hit an exception", "SGLang 0.5.4-0.5.23, scheduler.py"),
    _row("detokenizer-exception", r"^DetokenizerManager hit an exception", "SGLang 0.5.4-0.5.23"),
    _row("tokenizer-exception", r"^TokenizerManager hit an exception", "SGLang 0.5.4-0.5.23"),
    _row("rank-died", r"Rank \d+ scheduler died during initialization", "SGLang 0.5.12-0.5.23, engine.py", role="echo"),
    _row(
        "peer-missing",
        r"TP rank \d+ could finish the model loading, but there are other ranks that didn't",
        "SGLang 0.5.4-0.5.23, after loading: the rank that is gone has the cause",
        role="echo",
    ),
    _row("child-failed", r"^(Received sigquit from a child|SIGQUIT received)", "SGLang 0.5.4-0.5.23", role="echo"),
    _row(
        "watchdog",
        r"[Ww]atchdog timeout \(self\.watchdog_timeout=",
        "SGLang <= 0.5.6 'Watchdog', later '<name> watchdog'",
    ),
    _row("nccl-watchdog", r"Watchdog caught collective operation timeout", "torch ProcessGroupNCCL; sglang#3784"),
    _row("warmup-failed", r"Initialization failed\. warmup error", "SGLang 0.5.4-0.5.23, http_server.py"),
    _row("graph-capture-failed", r"Capture (?:\w+ )?(?:cuda|CUDA) graph failed", "SGLang 0.5.9, cuda_graph_runner.py"),
    _row(
        "bad-flag", r": error: (unrecognized arguments|argument |ambiguous option|the following arguments)", "argparse"
    ),
    _row(
        "model-missing",
        r"(is not a local folder and is not a valid model identifier|Can't load the (configuration|config) (of|for)"
        r"|Repo id must be (in the form|a string)|Incorrect path_or_model_id|Cannot find any model weights with"
        r"|does not appear to have a file named config\.json|No such file or directory: '[^']*config\.json)",
        "transformers, huggingface_hub, SGLang loader.py",
    ),
    _row(
        "port-in-use",
        r"(?i)(address already in use|EADDRINUSE|port is already in use|the port \d+ is in use)",
        "uvicorn; SGLang network.py",
    ),
    _row("cuda-oom", r"(CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED)", "torch"),
    _row("no-memory-for-kv", r"Not enough memory\. Please try", "SGLang model_runner.py"),
    _row("no-kernel-image", r"no kernel image is available", "CUDA runtime; SM120 with kernels of SM90/100"),
    _row(
        "nccl-error",
        r"(ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclInvalidUsage|ncclRemoteError)",
        "NCCL",
    ),
    _row("disk-full", r"No space left on device", "errno 28"),
    _row(
        "shm-invalid",
        r"(unable to (open|mmap|resize) shared memory|Error while creating shared memory segment)",
        "NCCL, torch",
    ),
    _row("bus-error", r"^(Bus error|Fatal Python error: Bus error)", "a full /dev/shm"),
    _row("fatal-python", r"^Fatal Python error: ", "faulthandler"),
    _row(
        "peer-closed",
        r"Connection (closed|reset) by peer",
        "gloo; the real failure is on another rank",
        role="echo",
    ),
    _row(
        "health-timeout",
        r"Health check failed\. Server couldn't get a response",
        "SGLang http_server.py",
        role="notice",
    ),
    _row("stopping", r"^SIGTERM received", "SGLang tokenizer_manager.py", role="notice"),
)
STACK = Trouble("traceback", re.compile(re.escape(_STACK)), "echo", "Python; SGLang also logs harmless ones")


class ErrorReader:
    """Finds troubles in records and the end of the traceback that belongs to each."""

    def __init__(self) -> None:
        self.found: list[LogError] = []
        self._open: int | None = None  # index of the error whose traceback is being read
        self._in_stack = False

    def feed(self, record: Record) -> None:
        """Look at one record."""
        stamped = record.time is not None or bool(record.rank)
        if stamped:
            self._open, self._in_stack = None, False
        if self._open is not None and self._follow(record):
            return
        kind = next((t for t in TROUBLES if t.pattern.search(record.text)), None)
        if kind is None and _STACK in record.text:
            kind = STACK
        if kind is None or len(self.found) >= KEPT:
            return
        self._open = len(self.found)
        self._in_stack = _STACK in record.text
        self.found.append(LogError(kind.id, kind.role, record.rank, record.line, record.time, record.text.strip()))

    def _follow(self, record: Record) -> bool:
        """Read on in the open traceback; False when this record is none of it."""
        text, index = record.text, self._open
        assert index is not None
        if _STACK in text:
            self._in_stack = True
        elif not text.strip() or text.startswith(_CHAINED):
            pass
        elif text.startswith((" ", "\t")):
            if self._in_stack and text.lstrip().startswith("File "):
                self.found[index] = replace(self.found[index], frame=text.strip())
        elif self._in_stack:
            self.found[index] = self._ended(self.found[index], text)
            self._in_stack = False
        else:
            self._open = None
            return False
        return True

    @staticmethod
    def _ended(error: LogError, text: str) -> LogError:
        """The traceback's last line; a bare traceback takes the name of the trouble it ends in."""
        if error.id == STACK.id:
            kind = next((t for t in TROUBLES if t.pattern.search(text)), None)
            if kind:
                error = replace(error, id=kind.id, role=kind.role)
        elif error.role == "cause" and any(t.role == "echo" and t.pattern.search(text) for t in TROUBLES):
            error = replace(error, role="echo")
        return replace(error, last=text.strip())


def first_cause(errors: tuple[LogError, ...]) -> LogError | None:
    """The error to show: the first cause, else the last bare traceback, else the first echo."""
    for wanted in ("cause", "echo"):
        candidates = [e for e in errors if e.role == wanted]
        stacks = [e for e in candidates if e.id == STACK.id]
        if stacks:
            return stacks[-1]
        if candidates:
            return candidates[0]
    return None
