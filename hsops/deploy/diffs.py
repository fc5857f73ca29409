"""What a unified diff says, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hunk:
    """One change.

    Args:
        line: of its header in the diff, from 1.
        start: the line in the old file that it says it is at, from 1; 0 in an empty file.
        old, new: the lines before and after, each with its line end (the last may have none).
        leading, trailing: how many of them stand unchanged before the first change and after the last.
    """

    line: int
    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    leading: int
    trailing: int

    def reversed(self) -> Hunk:
        """The hunk that undoes it."""
        return Hunk(self.line, self.start, self.new, self.old, self.leading, self.trailing)


@dataclass(frozen=True, slots=True)
class FileDiff:
    """What happens to one file.

    Args:
        line: of its header in the diff.
        source: path that the old bytes come from; None: there is no file before.
        target: path of the file afterwards; None: it goes away.
        mode: permission bits that the diff gives to it; None: none.
        hunks: the changes, in order.
        keeps_source: it is a copy: ``source`` stays.
    """

    line: int
    source: str | None
    target: str | None
    mode: int | None
    hunks: tuple[Hunk, ...]
    keeps_source: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that it changes."""
        own = (None if self.keeps_source else self.source, self.target)
        return tuple(dict.fromkeys(path for path in own if path))
