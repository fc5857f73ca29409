"""A unified diff, read strictly: what it does to which files, byte for byte. Pure.

Git's headers are understood (new, deleted, renamed, copied files, modes, quoted names); what cannot be done as text
(binary contents, links, submodules) is a fault with its line, as is anything that a program would have to guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from hsops.core.errors import ConfigError, Fault
from hsops.core.texts import a_relative_path
from hsops.deploy.diffs import FileDiff, Hunk

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b'"': b'"', b"\\": b"\\", b"a": b"\a", b"b": b"\b", b"f": b"\f"}
_NULL = "/dev/null"
_STAMP = re.compile(rb"\t(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.0+)? ([+-]\d{4})$")
_ONLY = re.compile(rb"Only in .+: (.+)")
_NO_END = "'\\ No newline at end of file'"
_BINARY = "a binary file: a diff cannot hold it strictly; use a patch of kind files"


@dataclass
class _Head:
    """The header lines of one file, as they come."""

    line: int
    old: str | None = None
    new: str | None = None
    named: bool = False
    mode: int | None = None
    epoch: tuple[bool, bool] = (False, False)
    words: dict[str, str] = field(default_factory=dict)
    hunks: list[Hunk] = field(default_factory=list)


def parse(text: bytes, file: str, strip: int) -> tuple[FileDiff, ...]:
    """The files of a diff.

    Args:
        text: the diff.
        file: its name, for faults.
        strip: leading parts of each path to leave out.

    Raises:
        ConfigError: it is none, or asks for what cannot be done; every fault at once.
    """
    return _Parser(text, file, strip).parse()


class _Parser:
    def __init__(self, text: bytes, file: str, strip: int) -> None:
        self.lines = text.split(b"\n")
        if self.lines[-1] == b"":
            self.lines.pop()
        self.file, self.strip, self.at = file, strip, 0
        self.git = any(line.startswith(b"diff --git ") for line in self.lines)
        self.heads: list[_Head] = []
        self.faults: list[Fault] = []

    def parse(self) -> tuple[FileDiff, ...]:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith(b"@@ "):
                self._hunk()
            else:
                self._header(line.rstrip(b"\r"))
                self.at += 1
        found = [diff for head in self.heads if (diff := self._file(head))]
        self._check_twice(found)
        if not found and not self.faults:
            self._fault(1, "no change to any file in it: not a unified diff (diff -u, git diff)?")
        if self.faults:
            raise ConfigError(sorted(self.faults, key=lambda fault: fault.line))
        return tuple(found)

    def _fault(self, line: int, message: str) -> None:
        self.faults.append(Fault(self.file, line, 1, "", message))

    def _header(self, line: bytes) -> None:
        number = self.at + 1
        if line.startswith(b"diff --git "):
            self.heads.append(_Head(number, words={"git": line[11:].decode("utf-8", "surrogateescape")}))
        elif line.startswith(b"--- ") and self._next().startswith(b"+++ "):
            head = self.heads[-1] if self.heads and not self.heads[-1].named and not self.heads[-1].hunks else None
            if head is None:
                self.heads.append(head := _Head(number))
            head.named, head.line = True, number
            head.old = self._name(line[4:], number)
            self.at += 1
            new = self._line().rstrip(b"\r")
            head.new = self._name(new[4:], number + 1)
            head.epoch = (_is_epoch(line), _is_epoch(new))
        elif self.heads and "git" in self.heads[-1].words and not self.heads[-1].named:
            self._git(self.heads[-1], line, number)
        elif not self.git:
            self._remark(line, number)

    def _remark(self, line: bytes, number: int) -> None:
        """What ``diff -r`` says of files that it does not show: left out, they would be missing without a word."""
        if line.startswith(b"Binary files ") and line.endswith(b" differ"):
            self._fault(number, _BINARY)
        elif (only := _ONLY.fullmatch(line)) and only[1] != b"__pycache__" and not only[1].endswith(b".pyc"):
            name = only[1].decode("utf-8", "backslashreplace")
            self._fault(number, f"{name} is on one side only: make the diff with -N, or take this line out")

    def _git(self, head: _Head, line: bytes, number: int) -> None:
        text = line.decode("utf-8", "surrogateescape")
        if line.startswith((b"Binary files ", b"GIT binary patch")):
            self._fault(number, _BINARY)
            head.words["bad"] = ""
        for word in ("new file mode ", "new mode ", "deleted file mode ", "old mode "):
            if text.startswith(word):
                self._mode(head, word.strip(), text[len(word) :].strip(), number)
        for word in ("rename from ", "rename to ", "copy from ", "copy to "):
            if text.startswith(word):
                head.words[word.strip()] = self._unquoted(line[len(word) :], number)

    def _mode(self, head: _Head, word: str, value: str, number: int) -> None:
        head.words[word] = value
        if not re.fullmatch(r"100[0-7]{3}", value):
            kind = {"120000": "a symbolic link", "160000": "a submodule"}.get(value, f"of mode {value}")
            self._fault(number, f"the file is {kind}; only plain files can be patched")
            head.words["bad"] = ""
        elif word.startswith("new"):
            head.mode = int(value[3:], 8)

    def _hunk(self) -> None:
        number, line = self.at + 1, self.lines[self.at]
        self.at += 1
        match = _HUNK.match(line)
        if not match or not self.heads:
            self._fault(
                number, "not a hunk's header (@@ -10,7 +10,8 @@)" if not match else "a hunk before any file name"
            )
            return
        counts = [1 if match[i] is None else int(match[i]) for i in (2, 4)]
        rows, whole = self._rows(*counts)
        if self._line().startswith(b"\\"):
            self._fault(self.at + 1, f"{_NO_END} here, but no line before it has an end to lose")
        elif _goes_on(rows):
            self._fault(number, f"the hunk goes on behind {_NO_END}")
        elif not whole:
            said = "the diff ends inside the hunk" if self.at >= len(self.lines) else "the hunk ends early"
            self._fault(number, f"{said}: it is to have {counts[0]} lines before and {counts[1]} after")
        elif self._line()[:1] in (b"+", b" ") or (self._line()[:1] == b"-" and not self._may_follow()):
            self._fault(self.at + 1, f"a line too many: the header in line {number} counts fewer")
            self._skip_rows()
        elif all(sign == b" " for sign, _ in rows):
            self._fault(number, "the hunk changes nothing")
        else:
            self.heads[-1].hunks.append(_made(number, int(match[1]), rows))

    def _may_follow(self) -> bool:
        """A line with ``-`` that is no part of the hunk: the next file, or the signature of a mailed diff."""
        return self._line().startswith(b"--- ") or self._line().rstrip() == b"--"

    def _rows(self, old: int, new: int) -> tuple[list[tuple[bytes, bytes]], bool]:
        """The hunk's lines with their signs, and whether all of them are there."""
        rows: list[tuple[bytes, bytes]] = []
        while self.at < len(self.lines) and (old > 0 or new > 0 or self._line().startswith(b"\\")):
            line = self._line()
            sign = line[:1] or b" "  # some editors strip the one blank of an empty line
            if sign == b"\\" and rows and rows[-1][1].endswith(b"\n"):
                rows[-1] = (rows[-1][0], rows[-1][1][:-1])
            elif sign in b" -+" and (old > 0 if sign == b"-" else new > 0 if sign == b"+" else old > 0 and new > 0):
                rows.append((sign, line[1:] + b"\n"))
                old -= sign != b"+"
                new -= sign != b"-"
            else:
                break
            self.at += 1
        return rows, old == new == 0

    def _skip_rows(self) -> None:
        while self._line()[:1] in (b" ", b"+", b"-") and not self._may_follow():
            self.at += 1

    def _line(self) -> bytes:
        return self.lines[self.at] if self.at < len(self.lines) else b""

    def _next(self) -> bytes:
        return self.lines[self.at + 1] if self.at + 1 < len(self.lines) else b""

    def _name(self, raw: bytes, number: int) -> str | None:
        text = self._unquoted(raw if raw.startswith(b'"') else raw.split(b"\t")[0], number)
        return None if text == _NULL else text

    def _unquoted(self, raw: bytes, number: int) -> str:
        if raw.startswith(b'"'):
            inner = raw[1 : raw.rfind(b'"')]
            raw = re.sub(rb"\\([0-3][0-7]{2}|.)", _unescape, inner)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._fault(number, f"the name {raw!r} is not UTF-8")
            return "?"

    def _file(self, head: _Head) -> FileDiff | None:
        """What a header and its hunks come to; None: nothing, or a fault that is told."""
        words = head.words
        if "bad" in words:
            return None
        copied = "copy from" in words
        old, new = self._ends(head)
        if head.epoch[0] and not any(hunk.old for hunk in head.hunks):
            old = None
        elif head.epoch[1] and not any(hunk.new for hunk in head.hunks):
            new = None
        if head.named and old is None and new is None:
            self._fault(head.line, "neither side names a file")
            return None
        if not head.hunks and not words.keys() & {
            "rename from", "copy from", "new mode", "new file mode", "deleted file mode",
        }:  # fmt: skip
            if head.named and not self.faults:
                self._fault(head.line, "no hunk follows")
            return None
        if new is None and head.hunks and any(hunk.new for hunk in head.hunks):
            self._fault(head.line, "the file is deleted, but lines stay")
        if old is None and any(hunk.old for hunk in head.hunks):
            self._fault(head.line, "the file is new, but has lines before")
        if old and new and old != new and "rename from" not in words and not copied:
            old = self._same_file(head, old, new)
        return FileDiff(head.line, old, new, head.mode, tuple(head.hunks), copied)

    def _same_file(self, head: _Head, old: str, new: str) -> str:
        """``diff -u x.py.orig x.py`` means x.py."""
        if not old.startswith(f"{new}.") and old.rpartition("/")[2] != new.rpartition("/")[2]:
            self._fault(head.line, f"two names, {old} and {new}, and no 'rename from': which file is meant?")
        return new

    def _ends(self, head: _Head) -> tuple[str | None, str | None]:
        words = head.words
        renamed = [words.get("rename from", words.get("copy from")), words.get("rename to", words.get("copy to"))]
        if renamed[0] is not None and renamed[1] is not None:
            return self._path(renamed[0], head.line, 0), self._path(renamed[1], head.line, 0)
        names = (head.old, head.new)
        if not head.named:
            names = self._git_names(head)
        old, new = (None if name is None else self._path(name, head.line, self.strip) for name in names)
        return (None if "new file mode" in words else old), (None if "deleted file mode" in words else new)

    def _git_names(self, head: _Head) -> tuple[str | None, str | None]:
        """A change without hunks has its names in the first line only, the same on both sides: a/NAME b/NAME."""
        text = head.words["git"]
        half = len(text) // 2
        one, two = text[:half], text[half + 1 :]
        if text[half : half + 1] == " " and one.partition("/")[2] == two.partition("/")[2]:
            raw = [part.encode("utf-8", "surrogateescape") for part in (one, two)]
            return self._name(raw[0], head.line), self._name(raw[1], head.line)
        self._fault(head.line, "the name of the file cannot be told from this line")
        return None, None

    def _path(self, name: str, line: int, strip: int) -> str:
        parts = name.split("/")
        wanted = "/".join(parts[strip:])
        if not wanted:
            self._fault(line, f"{name} has no {strip + 1} parts; set strip to fewer")
            return "?"
        try:
            return a_relative_path(wanted)
        except ValueError:
            self._fault(line, f"{wanted!r} is not a plain path below root (strip {strip} of {name})")
            return "?"

    def _check_twice(self, found: list[FileDiff]) -> None:
        first: dict[str, int] = {}
        for diff in found:
            for path in diff.paths:
                if path in first and path != "?":
                    self._fault(diff.line, f"{path} is changed twice, first in line {first[path]}; join the two")
                first.setdefault(path, diff.line)


def _is_epoch(line: bytes) -> bool:
    """With this time ``diff -N`` marks a side on which there is no file: /dev/null in git's words."""
    match = _STAMP.search(line)
    if not match:
        return False
    try:
        told = datetime.strptime(f"{match[1].decode()} {match[2].decode()}", "%Y-%m-%d %H:%M:%S %z")
    except ValueError:
        return False
    return told.timestamp() == 0


def _made(number: int, start: int, rows: list[tuple[bytes, bytes]]) -> Hunk:
    signs = [sign for sign, _ in rows]
    kept = [sign == b" " for sign in signs]
    leading, trailing = kept.index(False), kept[::-1].index(False)
    old = tuple(text for sign, text in rows if sign != b"+")
    new = tuple(text for sign, text in rows if sign != b"-")
    return Hunk(number, start, old, new, leading, trailing)


def _goes_on(rows: list[tuple[bytes, bytes]]) -> bool:
    """A side has a line behind the one without an end: put in, the two would be one line."""
    sides = ([text for sign, text in rows if sign != other] for other in (b"+", b"-"))
    return any(not text.endswith(b"\n") for side in sides for text in side[:-1])


def _unescape(match: re.Match[bytes]) -> bytes:
    word = match[1]
    return bytes([int(word, 8)]) if len(word) == 3 else _ESCAPES.get(word, word)
