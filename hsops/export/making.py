"""From dumps to files of a data set: checked, side by side, each one whole or not there."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hsops.core.dump_check import Finding, check
from hsops.core.dumps import Sample
from hsops.core.errors import SpaceError
from hsops.core.events import Emit
from hsops.core.meter import Meter
from hsops.core.parallel import End, Watch, cores, spread
from hsops.core.prompts import Prompt
from hsops.export.formats import Format
from hsops.export.rows import Row, rows
from hsops.export.target import Target

ABOUT = "hsops-export.json"


@dataclass(frozen=True, slots=True)
class Job:
    """What to export.

    Args:
        source: the dumps' folder.
        to: where the data set goes.
        prompts: which dumps, in which order, with which masks; None: all of them, learning from every token.
        engine: whose layer ids to write into a drafter's configuration; empty: none.
        trunk: of the model, where the dumps do not say it.
        partial: a data set without the dumps that are missing or faulty is wanted rather than none.
    """

    source: Path
    to: Path
    prompts: tuple[Prompt, ...] | None
    engine: str = ""
    trunk: str = ""
    partial: bool = False


@dataclass(frozen=True, slots=True)
class _Made:
    """What became of one row: how its file was made, or why it was not."""

    way: str
    findings: tuple[Finding, ...] = ()


def write_all(
    job: Job, kind: Format, target: Target, dumps: Mapping[str, Sample], emit: Emit
) -> tuple[Counter[str], list[Finding], list[Row]]:
    """Write what is not there yet; how often in which way, what is wrong with dumps, and the rows that are there.

    A dump that turns out faulty has no row. Where that moves the numbers of others, these are placed anew.
    """
    made, faulty = Counter[str](), dict[str, tuple[Finding, ...]]()
    while True:
        chosen = rows(dumps, job.prompts, faulty, gaps=kind.needs.gaps)
        target.tidy({kind.file(row) for row in chosen}, kind.is_data)
        kind.begin(target, chosen)
        todo = [row for row in chosen if not target.whole(kind.file(row), kind.key(row))]
        found: dict[str, tuple[Finding, ...]] = {}
        if todo:
            target.remove(ABOUT)
            _check_space(job, kind, todo)
            found = _write(job, kind, target, todo, emit, made=made)
        faulty |= found
        if not found or not job.partial:
            rest = [row for row in chosen if row.sample.id not in faulty]
            target.tidy({kind.file(row) for row in rest}, kind.is_data)
            return made, [one for all_ in faulty.values() for one in all_], rest


def _check_space(job: Job, kind: Format, todo: Sequence[Row]) -> None:
    found = os.statvfs(job.to)
    free = found.f_bavail * found.f_frsize
    beside = job.to.stat().st_dev == job.source.stat().st_dev
    needed = sum(kind.size(row, beside=beside) for row in todo)
    if needed > free:
        raise SpaceError(
            f"{needed:,} bytes are to be written, {job.to} has {free:,} free",
            fix="free some room, or choose another --to DIR; what is there already will not be written again",
        )


def _write(
    job: Job, kind: Format, target: Target, todo: Sequence[Row], emit: Emit, *, made: Counter[str]
) -> dict[str, tuple[Finding, ...]]:
    """Write rows side by side. Threads: the kernel, checksums and numpy work without the interpreter's lock."""
    calls = {row.sample.id: partial(_make, job.source, kind, target, row) for row in todo}
    watch = _Progress(kind, target, todo, made, emit)
    spread(calls, at_most=cores(), watch=watch)
    return watch.faulty


def _make(source: Path, kind: Format, target: Target, row: Row) -> _Made:
    """One file, of a dump that was checked and did not change meanwhile."""
    path, findings = source / row.sample.file, list[Finding]()

    def write(part: Path) -> str:
        before = _stamp(path)
        findings.extend(check(source, row.sample, row.tokens).findings)
        if not findings and row.mask and len(row.mask) != row.sample.tokens:
            said = f"loss_mask of {len(row.mask):,} for {row.sample.tokens:,} tokens"
            findings.append(Finding(row.sample.file, "mask", said))
        way = "" if findings else kind.write(path, row, part)
        if not findings and _stamp(path) != before:
            findings.append(Finding(row.sample.file, "changed", "it changed while it was exported; run it again"))
        return "" if findings else way

    return _Made(target.put(kind.file(row), write), tuple(findings))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Not the time of the inode's change, as a hard link is one."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class _Progress(Watch[_Made]):
    """Keeps the journal, in the caller's thread, and tells how far it is."""

    def __init__(self, kind: Format, target: Target, todo: Sequence[Row], made: Counter[str], emit: Emit) -> None:
        self._kind, self._target, self._made, self._emit = kind, target, made, emit
        self._rows = {row.sample.id: row for row in todo}
        self._meter = Meter("export", "bytes", sum(row.sample.bytes for row in todo))
        self._done, self._told = 0, time.monotonic()
        self.faulty = dict[str, tuple[Finding, ...]]()

    def ended(self, key: str, end: End[_Made]) -> None:
        row = self._rows.pop(key)
        self._done += row.sample.bytes
        if end.value is None:
            raise end.error or RuntimeError(key)
        if end.value.findings:
            self.faulty[key] = end.value.findings
        else:
            self._made[end.value.way] += 1
            self._target.record(self._kind.file(row), self._kind.key(row), id=key)
        self._tell(every=0.5 if self._rows else 0.0)

    def waiting(self) -> None:
        self._tell(every=2.0)

    def _tell(self, every: float) -> None:
        if time.monotonic() - self._told >= every:
            self._told = time.monotonic()
            self._emit(self._meter.at(self._done, f"{len(self.faulty):,} faulty"))
