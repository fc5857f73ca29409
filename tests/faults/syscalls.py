"""What a process asks of the kernel, recorded by strace, and the same process with a fault at one of these calls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TRACED = (
    "openat,open,creat,write,pwrite64,writev,ftruncate,truncate,fchmod,chmod,fchmodat,fchown,chown,lchown,fchownat,fsync,"
    "fdatasync,utimensat,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,"
    "setxattr,fsetxattr,sendfile,copy_file_range,exit_group"
)
_CALL = re.compile(r"^(\d+ +)?(\w+)\((.*)\) += (\?|-?\w+)")
_BEGUN, _ENDED = " <unfinished ...>", re.compile(r"^(\d+) +<\.\.\. \w+ resumed>")
_RANDOM = re.compile(r"(?<=/lock/\.hsops-tmp-)[0-9a-f]{12}")  # a lease's temporary name, another in every run
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"|\d+<([^>]*)>')


@dataclass(frozen=True)
class Call:
    """One system call.

    Args:
        name: of the call; nth: how many of that name came before it, plus 1, as strace counts.
        again: the same of those with the same paths.
        paths: the files it names or whose descriptors it is given.
        text: its arguments, as strace shows them.
        result: what the kernel said; ``?`` when the process did not live to hear it.
        injected: strace said it in its place.
    """

    name: str
    nth: int
    again: int
    paths: tuple[str, ...]
    text: str
    result: str
    injected: bool = False

    @property
    def what(self) -> tuple[str, int, tuple[str, ...]]:
        """What is the same in every run. ``nth`` is not: to list the host's processes takes as many calls as those."""
        return self.name, self.again, self.paths

    @property
    def failed(self) -> bool:
        """The kernel said no."""
        return self.result.startswith("-")

    def __str__(self) -> str:
        return f"{self.name}({self.text}) [{self.nth}]"


def strace(log: Path, *inject: str) -> list[str]:
    """The words before a command that is to be traced, with faults (``rename:signal=KILL:when=3``)."""
    faults = [word for one in inject for word in ("-e", f"inject={one}")]
    return ["strace", "-f", "-y", "-s", "256", "-o", str(log), "-e", f"trace={TRACED}", *faults]


def calls(log: Path) -> list[Call]:
    """The calls of a trace, in order; each process is counted for itself, as strace does."""
    found: list[Call] = []
    counts, same = Counter[tuple[str, str]](), Counter[tuple[str, str, tuple[str, ...]]]()
    for line in _whole(log.read_text(errors="replace").splitlines()):
        if match := _CALL.match(line):
            pid, name, text, result = match.groups()
            paths = tuple(_paths(name, text))
            counts[pid, name] += 1
            same[pid, name, paths] += 1
            found.append(
                Call(name, counts[pid, name], same[pid, name, paths], paths, text, result, "(INJECTED)" in line)
            )
    return found


def _whole(lines: list[str]) -> Iterator[str]:
    """Each call on one line, where it began: strace breaks one off when another thread has something to tell."""
    ends: dict[str, list[str]] = {}
    for line in lines:
        if match := _ENDED.match(line):
            ends.setdefault(match[1], []).append(line[match.end() :])
    for line in lines:
        if line.endswith(_BEGUN):
            rest = ends.get(line.split()[0]) or [") = ?"]
            yield line.removesuffix(_BEGUN) + rest.pop(0)
        elif not _ENDED.match(line):
            yield line


def points(found: list[Call], *roots: Path) -> list[Call]:
    """Those that concern files below ``roots``, and what comes after the last of them: the reply and the end."""
    mine = [call for call in found if any(path.startswith(str(root)) for path in call.paths for root in roots)]
    after = [call for call in found[found.index(mine[-1]) :] if call.name in ("write", "exit_group")]
    return mine + [call for call in after if call not in mine]


def _paths(name: str, text: str) -> Iterator[str]:
    for quoted, described in _PATH.findall(text):
        if described or name not in ("write", "pwrite64", "writev"):  # theirs are bytes
            yield _RANDOM.sub("", quoted or described.partition(":[")[0])  # a pipe's number is another in every run
