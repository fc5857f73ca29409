"""Where output goes: stdout for results, stderr for errors and progress; JSON lines when asked. The one printer."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hsops.core.errors import HsopsError
from hsops.core.events import Event, Picture, Progress, Together, Trace
from hsops.render import paint, progress, streams
from hsops.render.describe import describe

SCHEMA = "hsops/1"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command concluded.

    Args:
        data: for ``--json``: JSON values only.
        lines: the same for people, plain text.
        exit_code: see docs/reference/exit-codes.md.
        errors: entries of the envelope's ``errors``; their presence makes ``ok`` false.
        summary: the line that says it in short, for a playbook's table; empty: the last one.
    """

    data: dict[str, Any] = field(default_factory=dict)
    lines: Iterable[str] = ()
    exit_code: int = 0
    errors: tuple[dict[str, Any], ...] = ()
    summary: str = ""


class Console:
    """Prints one command's events and outcome.

    Args:
        command: the command's name, for the envelope.
        as_json: JSON lines on stdout, nothing else there.
        color: allow colour (only used on a terminal).
    """

    def __init__(self, command: str, *, as_json: bool, color: bool) -> None:
        self.command, self.as_json = command, as_json
        self.terminal = sys.stderr.isatty() and not as_json
        self.color = color and self.terminal and paint.wanted(sys.stderr)
        self._color_out = color and not as_json and paint.wanted(sys.stdout)
        self._pace = progress.Pace()
        self.heard = True  # somebody still reads standard output
        self._live_shown, self._lock = False, threading.Lock()
        self._block = 0  # lines of the picture on the screen
        self._together: dict[str, str] = {}  # the live line of each thing that goes on at once, by task

    def emit(self, event: Event) -> None:
        """Show one event: a JSON line, or lines on stderr for people. From any thread: several hosts tell at once."""
        with self._lock:
            self._emit(event)

    def _emit(self, event: Event) -> None:
        if isinstance(event, Together):
            self._together = dict.fromkeys(event.tasks, "")
            self._block = 0  # what they came to stays
        elif isinstance(event, Picture):
            if self.terminal:
                self._picture(list(describe(event)))
        elif self.as_json:
            self._json({"schema": SCHEMA, "command": self.command, **event.as_json()})
        elif isinstance(event, Trace) and self.terminal:
            pass
        elif isinstance(event, Progress):
            if self.terminal and self._together:
                self._live_together(event)
            elif self.terminal:
                self._live(progress.line(event))
            elif self._pace.wants(event):
                self._say(progress.line(event))
        else:
            self._say(*describe(event))

    def outcome(self, outcome: Outcome) -> int:
        """Print the result; returns the exit code."""
        if self.as_json:
            ok = outcome.exit_code == 0 and not outcome.errors
            self._envelope(ok=ok, data=outcome.data, errors=list(outcome.errors))
        else:
            if self._live_shown:
                self._err("\n")
            self._block = 0  # the last picture stays
            lines = map(paint.plain, outcome.lines)
            painted = map(paint.paint, lines) if self._color_out else lines
            self._out("".join(f"{line}\n" for line in painted))
        return outcome.exit_code

    def error(self, error: HsopsError) -> int:
        """Print an error; returns its exit code. Where it cannot be said as JSON it is said for people."""
        with contextlib.suppress(HsopsError):
            if self.as_json:
                self._envelope(ok=False, data={}, errors=error.as_json())
                return error.exit_code
        self._block = 0
        self._say(*error_lines(error), alarm=True)
        return error.exit_code

    def interrupted(self) -> int:
        """Say that Ctrl-C was heard; returns exit code 130."""
        if self.as_json:
            self._envelope(ok=False, data={}, errors=[{"type": "Interrupted", "message": "interrupted"}])
        else:
            self._say("interrupted")
        return 130

    def _live(self, text: str) -> None:
        """Rewrite the one live line of a terminal."""
        width = shutil.get_terminal_size().columns - 1
        self._err(f"\r\x1b[K{paint.plain(text)[:width]}")
        self._live_shown = True

    def _live_together(self, event: Progress) -> None:
        """Rewrite the live lines; of what else is told in between, a check before a fetch, a line while it lasts."""
        own = progress.line(event)
        lines = [own if task == event.task else text for task, text in self._together.items()]
        if event.task in self._together:
            self._together[event.task] = own
        elif event.done < event.total:
            lines.append(own)
        self._picture([text for text in lines if text])

    def raw(self, data: bytes) -> None:
        """Bytes for stdout exactly as they are: ``hsops logs``."""
        self.heard = self.heard and streams.write_bytes(sys.stdout, data)

    def _picture(self, lines: list[str]) -> None:
        """Redraw the block of lines of a terminal."""
        width = shutil.get_terminal_size().columns - 1
        self._erase()
        self._err("".join(f"{paint.plain(text)[:width]}\n" for text in lines))
        self._block = len(lines)

    def _erase(self) -> None:
        if self._block:
            self._err(f"\x1b[{self._block}F\x1b[J")
            self._block = 0

    def _say(self, *lines: str, alarm: bool = False) -> None:
        """Print lines on stderr, above nothing: a live line ends first, a picture is drawn again below."""
        if lines:
            self._erase()
        if self._live_shown and lines:
            self._err("\n")
            self._live_shown = False
        shown = [paint.plain(line) for line in lines]
        if self.color:
            shown = [paint.alarm(line) if alarm and not at else paint.paint(line) for at, line in enumerate(shown)]
        self._err("".join(f"{line}\n" for line in shown))

    def _envelope(self, *, ok: bool, data: dict[str, Any], errors: list[dict[str, Any]]) -> None:
        self._json({"schema": SCHEMA, "command": self.command, "ok": ok, "data": data, "errors": errors})

    def _json(self, value: dict[str, Any]) -> None:
        self._out(json.dumps(value, separators=(",", ":"), default=str) + "\n")

    def _out(self, text: str) -> None:
        """Standard output. A reader who has seen enough does not end the work: half done is worse than unseen."""
        try:
            self.heard = self.heard and streams.write(sys.stdout, text)
        except HsopsError:
            self.as_json = False  # so that the error itself can be said, on the other stream
            raise

    @staticmethod
    def _err(text: str) -> None:
        """Standard error. If it cannot be written there is nowhere left to say so, and the exit code speaks."""
        with contextlib.suppress(HsopsError):
            streams.write(sys.stderr, text)


def error_lines(error: HsopsError) -> list[str]:
    """What happened where, why it matters, what to do: for people."""
    where = f"{error.host}: " if error.host else ""
    notes = [f"  {label}: {text}" for label, text in (("why", error.why), ("fix", error.fix)) if text]
    return [f"{where}{error.message}", *notes]
