"""The code blocks of README and docs/, and what is said about them.

A comment before a block says how a test runs it: ``<!-- run: here -->`` in an empty folder, without a host;
``<!-- run: host -->`` with a host that has dumps of train.jsonl, and no SGLang; ``<!-- run: lab -->`` on a lab, after
the page's blocks before it. ``, exit N``: how its last command ends. Blocks without one are read only: every ``hsops``
line in them, and every ``hsops ...`` between backquotes, must be one that hsops takes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(
    r"(?:<!-- run: (?P<where>\w+)(?:, exit (?P<exit>\d+))? -->\n)?^```(?P<language>[\w-]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(hsops [^`]+)`")
SHELL = ("", "sh", "console", "bash")


@dataclass(frozen=True)
class Block:
    """One block of code.

    Args:
        page: the file.
        line: where it begins.
        language: what stands behind the backquotes.
        text: what is in it.
        where: ``here``, ``host``, ``lab``, or empty: it is not run.
        exit: what its last command ends with.
    """

    page: Path
    line: int
    language: str
    text: str
    where: str
    exit: int

    @property
    def place(self) -> str:
        """For people."""
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text[: found.start("text")].count("\n"), found["language"], found["text"], found["where"] or "",
              int(found["exit"] or 0))
        for found in _BLOCK.finditer(text)
    ]  # fmt: skip


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Every ``hsops`` command line of a page: its place and its words, without ``hsops``."""
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        for number, line in enumerate(block.text.splitlines(), block.line + 1) if block.language in SHELL else ():
            for words in _words(line):
                yield f"{page.relative_to(ROOT)}:{number}", words
    prose = _FENCED.sub(lambda found: "\n" * found[0].count("\n"), text)
    for found in _INLINE.finditer(prose):
        for words in _words(found[1]):
            yield f"{page.relative_to(ROOT)}:{prose[: found.start()].count(chr(10)) + 1}", words


def _words(line: str) -> Iterator[list[str]]:
    """The command lines of one line: behind a prompt, in a pipe, beside another."""
    try:
        words = shlex.split(line.strip().removeprefix("$ "), comments=True)
    except ValueError:
        return  # output, not a command
    at = [i for i, word in enumerate(words) if word == "hsops" and (i == 0 or words[i - 1] in (*_SEPARATORS, *_BEFORE))]
    for start in at:
        rest = words[start + 1 :]
        end = next((i for i, word in enumerate(rest) if word in _SEPARATORS or word.endswith(";")), len(rest))
        found = [*rest[:end], rest[end].rstrip(";")] if end < len(rest) and rest[end].endswith(";") else rest[:end]
        yield [word for word in found if word]


_SEPARATORS = ("|", "&&", "||", ";", ">", "<", "&", "2>&1", "·")
_BEFORE = ("until", "while", "then", "do", "sudo", "time", "&&")
