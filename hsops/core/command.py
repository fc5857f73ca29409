"""Commands are values: an argv that quotes itself for a shell and masks its secrets for people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Command:
    """What to run on a host.

    Args:
        argv: the program and its arguments; ``~/`` at the start of an argument means the remote user's home.
        env: variables to set for this command only.
        secrets: values that must never be printed or logged.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()

    def shell(self) -> str:
        """The command as one line for ``sh -c``, every word quoted; a leading ``~/`` stays expandable."""
        words = [quote(word) for word in self.argv]
        if self.env:
            words = ["env", *(f"{name}={quote(value)}" for name, value in self.env.items()), *words]
        return " ".join(words)

    def __str__(self) -> str:
        """The line for people: secrets masked."""
        line = self.shell()
        for secret in self.secrets:
            if secret:
                line = line.replace(secret, "***")
        return line


def quote(word: str) -> str:
    """Quote ``word`` for a POSIX shell, leaving a leading ``~/`` to the shell."""
    if word == "~":
        return '"$HOME"'
    if word.startswith("~/"):
        return f'"$HOME"/{shlex.quote(word[2:])}' if word != "~/" else '"$HOME"/'
    return shlex.quote(word)
