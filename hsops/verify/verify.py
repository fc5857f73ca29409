"""``hsops verify``: the whole folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hsops.core.dump_check import Checked, Finding, check
from hsops.core.dumps import MANIFEST, Sample, latest
from hsops.core.events import Emit
from hsops.core.manifest import duplicates, read_manifest, without_dump
from hsops.core.meter import Meter
from hsops.core.parallel import End, Watch, cores, spread
from hsops.core.prompts import Prompt
from hsops.core.units import counted
from hsops.verify.norms import Norms, summary

HOSTS_OWN = re.compile(
    rf"({re.escape(MANIFEST)}|hello|check|rank\d+|\..*)\Z"
)  # a folder on its host may be verified too


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verify found.

    Args:
        samples, tokens, bytes: of the dumps that the manifest names.
        compared: how many were held against a prompt.
        failed: samples that failed on the host and have no dump.
        findings: every fault.
        norms: how long the rows are, by boundary.
        seconds: how long it took.
    """

    samples: int
    tokens: int
    bytes: int
    compared: int
    failed: int
    findings: tuple[Finding, ...]
    norms: tuple[Norms, ...]
    seconds: float


def verify(folder: Path, prompts: tuple[Prompt, ...] | None, emit: Emit) -> Verified:
    """Check every dump of a folder, and the folder itself.

    Args:
        folder: what ``hsops fetch`` wrote.
        prompts: what the dumps must be of; None to compare with nothing.
        emit: told the progress.

    Raises:
        UsageError: no such folder.
        BadDataError: it has no manifest.
    """
    started = time.monotonic()
    samples, findings = read_manifest(folder)
    known = latest(samples)
    dumps = [sample for sample in known.values() if sample.ok]
    wanted = {p.id: p.tokens for p in prompts or () if p.tokens}
    checked = _check_all(folder, dumps, wanted, emit)
    findings += (finding for one in checked.values() for finding in one.findings)
    findings += duplicates(samples)
    findings += list(_strays(folder, {s.file for s in dumps}))
    findings += list(without_dump(prompts or (), known))
    return Verified(
        samples=len(dumps),
        tokens=sum(s.tokens for s in dumps),
        bytes=sum(s.bytes for s in dumps),
        compared=sum(s.id in wanted for s in dumps),
        failed=len(known) - len(dumps),
        findings=tuple(findings),
        norms=summary(dumps, checked),
        seconds=time.monotonic() - started,
    )


class _Progress(Watch[Checked]):
    """Tells how far it is, at most twice a second."""

    def __init__(self, dumps: Sequence[Sample], emit: Emit) -> None:
        self._bytes, self._emit = {s.id: s.bytes for s in dumps}, emit
        self._meter = Meter("verify", "bytes", sum(self._bytes.values()))
        self._done, self._faults, self._told = 0, 0, time.monotonic()

    def ended(self, key: str, end: End[Checked]) -> None:
        self._done += self._bytes.pop(key)
        self._faults += len(end.value.findings) if end.value else 0
        self._tell(every=0.5 if self._bytes else 0.0)

    def waiting(self) -> None:
        self._tell(every=2.0)

    def _tell(self, every: float) -> None:
        if time.monotonic() - self._told >= every:
            self._told = time.monotonic()
            self._emit(self._meter.at(self._done, counted(self._faults, "fault")))


def _check_all(folder: Path, dumps: Sequence[Sample], wanted: Mapping[str, bytes], emit: Emit) -> dict[str, Checked]:
    """By id, in the manifest's order.

    Threads: reading, checksums and numpy work without the interpreter's lock; processes were no faster (0.9x).
    """
    calls = {s.id: partial(check, folder, s, wanted.get(s.id)) for s in dumps}
    ended = spread(calls, at_most=cores(), watch=_Progress(dumps, emit)).ended
    found = {}
    for sample in dumps:
        end = ended[sample.id]
        if end.value is None:
            raise end.error or RuntimeError(sample.id)
        found[sample.id] = end.value
    return found


def _strays(folder: Path, files: set[str]) -> Iterator[Finding]:
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        if entry.name in files or HOSTS_OWN.match(entry.name):
            continue
        if entry.name.endswith(".part"):
            yield Finding(entry.name, "part", "an unfinished transfer; hsops fetch continues it")
        else:
            yield Finding(entry.name, "stray", "the manifest does not name it")
