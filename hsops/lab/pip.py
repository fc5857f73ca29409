"""pip as a child process: its lines as progress, a deadline, its last words in the error."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hsops.core.errors import LabError
from hsops.core.events import Emit, Progress

QUIET = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")
LAST_WORDS = 6
NEXT = ("Collecting ", "Requirement already satisfied")
MIRROR = "pip takes your own settings: PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_CERT, ~/.config/pip/pip.conf"


@dataclass
class Pip:
    """pip of one interpreter.

    Args:
        python: whose pip.
        emit: told of each package.
        deadline_s: for each call, seconds.
    """

    python: Path
    emit: Emit
    deadline_s: float
    _said: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_WORDS))

    def run(self, *arguments: str, task: str, total: int, what: str) -> None:
        """One pip command.

        Args:
            arguments: of pip, beginning with its command.
            task: the progress event's name for it.
            total: packages to expect; 0 when unknown.
            what: what could not be done if it fails, for the message.

        Raises:
            LabError: pip failed or ran past its deadline; ``why`` holds its last lines.
        """
        argv = [str(self.python), "-I", "-m", "pip", arguments[0], *QUIET, *arguments[1:]]
        self._said.clear()
        seen, started = 0, time.monotonic()
        with _child(argv, self.deadline_s) as child:
            for line in child.lines():
                self._said.append(line)
                seen += line.startswith(NEXT)
                if line.startswith((*NEXT, "Installing ")):
                    self.emit(
                        Progress(task, min(seen, total) if total else seen, total, "packages", detail=_short(line))
                    )
        if child.late:
            raise LabError(f"{what}: pip was not done after {self.deadline_s:g} s", why=self.last_words(), fix=MIRROR)
        if child.status != 0:
            took = f"after {time.monotonic() - started:.0f} s"
            raise LabError(f"{what}: pip failed {took}", why=self.last_words(), fix=MIRROR)

    def last_words(self) -> str:
        """pip's last lines; its errors if it named any."""
        lines = [line for line in self._said if line.startswith("ERROR:")] or list(self._said)
        return " / ".join(_ends(line, 240) for line in lines) or "pip said nothing"


@dataclass
class _Child:
    process: subprocess.Popen[str]
    late: bool = False
    status: int | None = None

    def lines(self) -> Iterator[str]:
        assert self.process.stdout
        for line in self.process.stdout:
            if text := line.strip():
                yield text

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def expire(self) -> None:
        self.late = True
        self.kill()


@contextmanager
def _child(argv: list[str], deadline_s: float) -> Iterator[_Child]:
    """A process whose whole group ends with the context, with the deadline, or by itself."""
    environment = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "0", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    child = _Child(process)
    timer = threading.Timer(deadline_s, child.expire)
    timer.daemon = True
    timer.start()
    try:
        yield child
        child.status = process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:
            child.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


def _short(line: str) -> str:
    line = line.partition(" (from")[0]
    return line if len(line) <= 60 else line[:59] + "…"


def _ends(line: str, most: int) -> str:
    """A long line's beginning and end: the versions that pip lists last are the ones of interest."""
    return line if len(line) <= most else f"{line[: most // 3]} … {line[-(most - most // 3) :]}"
