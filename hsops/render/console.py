"""Where output goes: stdout for results, stderr for errors and progress; JSON lines when asked. The one printer."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hsops.core.errors import HsopsError
from hsops.core.events import Event, Picture, Progress, Trace
from hsops.render import progress
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
    """

    data: dict[str, Any] = field(default_factory=dict)
    lines: Iterable[str] = ()
    exit_code: int = 0
    errors: tuple[dict[str, Any], ...] = ()


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
        self.color = color and self.terminal
        self._pace = progress.Pace()
        self._live_shown = False
        self._block = 0  # lines of the picture on the screen

    def emit(self, event: Event) -> None:
        """Show one event: a JSON line, or lines on stderr for people."""
        if isinstance(event, Picture):
            if self.terminal:
                self._picture(list(describe(event)))
        elif self.as_json:
            self._json({"schema": SCHEMA, "command": self.command, **event.as_json()})
        elif isinstance(event, Trace) and self.terminal:
            pass
        elif isinstance(event, Progress):
            if self.terminal:
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
                print(file=sys.stderr)
            self._block = 0  # the last picture stays
            for line in outcome.lines:
                print(line)
            sys.stdout.flush()
        return outcome.exit_code

    def error(self, error: HsopsError) -> int:
        """Print an error; returns its exit code."""
        if self.as_json:
            self._envelope(ok=False, data={}, errors=error.as_json())
            return error.exit_code
        self._block = 0
        self._say(*error_lines(error))
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
        print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
        self._live_shown = True

    def raw(self, data: bytes) -> None:
        """Bytes for stdout exactly as they are: ``hsops logs``."""
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def _picture(self, lines: list[str]) -> None:
        """Redraw the block of lines of a terminal."""
        width = shutil.get_terminal_size().columns - 1
        self._erase()
        print("\n".join(text[:width] for text in lines), file=sys.stderr, flush=True)
        self._block = len(lines)

    def _erase(self) -> None:
        if self._block:
            print(f"\x1b[{self._block}F\x1b[J", end="", file=sys.stderr)
            self._block = 0

    def _say(self, *lines: str) -> None:
        """Print lines on stderr, above nothing: a live line ends first, a picture is drawn again below."""
        if lines:
            self._erase()
        if self._live_shown and lines:
            print(file=sys.stderr)
            self._live_shown = False
        for line in lines:
            print(line, file=sys.stderr)
        sys.stderr.flush()

    def _envelope(self, *, ok: bool, data: dict[str, Any], errors: list[dict[str, Any]]) -> None:
        self._json({"schema": SCHEMA, "command": self.command, "ok": ok, "data": data, "errors": errors})

    def _json(self, value: dict[str, Any]) -> None:
        print(json.dumps(value, separators=(",", ":"), default=str), flush=True)


def error_lines(error: HsopsError) -> list[str]:
    """What happened where, why it matters, what to do: for people."""
    where = f"{error.host}: " if error.host else ""
    notes = [f"  {label}: {text}" for label, text in (("why", error.why), ("fix", error.fix)) if text]
    return [f"{where}{error.message}", *notes]
