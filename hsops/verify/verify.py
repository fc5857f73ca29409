"""``hsops verify``: the whole folder."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hsops.core.dumps import MANIFEST, Sample, latest, parse_sample
from hsops.core.errors import BadDataError, UsageError
from hsops.core.events import Emit
from hsops.core.meter import Meter
from hsops.core.prompts import Prompt
from hsops.verify.check import Finding, check

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
        seconds: how long it took.
    """

    samples: int
    tokens: int
    bytes: int
    compared: int
    failed: int
    findings: tuple[Finding, ...]
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
    findings += _check_all(folder, dumps, wanted, emit)
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
        seconds=time.monotonic() - started,
    )


def read_manifest(folder: Path) -> tuple[list[Sample], list[Finding]]:
    """The manifest's samples, and a finding for every line that is none."""
    path = folder / MANIFEST
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        if not folder.is_dir():
            raise UsageError(
                f"{folder} is not a folder", fix="hsops verify DIR: where hsops fetch put the dumps"
            ) from None
        raise BadDataError(f"{folder} has no {MANIFEST}", fix="hsops fetch --to DIR writes it") from None
    samples, findings = list[Sample](), list[Finding]()
    *lines, torn = text.split("\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            _read_line(number, line, samples, findings)
    if torn:
        findings.append(Finding(MANIFEST, "manifest", f"line {len(lines) + 1} is torn; hsops fetch mends it"))
    return samples, findings


def duplicates(samples: list[Sample]) -> list[Finding]:
    """Ids with two dumps that differ: nobody can say which one was meant."""
    checksums = defaultdict[str, set[str]](set)
    for sample in samples:
        if sample.ok:
            checksums[sample.file].add(sample.checksum)
    return [
        Finding(file, "duplicate", f"the manifest has {len(found)} dumps of it that differ")
        for file, found in checksums.items()
        if len(found) > 1
    ]


def without_dump(prompts: tuple[Prompt, ...], known: Mapping[str, Sample]) -> Iterator[Finding]:
    """Prompts that have no dump."""
    for prompt in prompts:
        sample = known.get(prompt.id)
        if sample is None or not sample.ok:
            reason = f"failed on the host: {sample.reason}" if sample else "never extracted, or not fetched"
            yield Finding(f"{prompt.id}.safetensors", "no-dump", f"{reason} (prompts line {prompt.line})")


def _read_line(number: int, line: str, samples: list[Sample], findings: list[Finding]) -> None:
    try:
        samples.append(parse_sample(line))
    except BadDataError as error:
        findings.append(Finding(MANIFEST, "manifest", f"line {number}: {error.message}"))


def _check_all(folder: Path, dumps: list[Sample], wanted: dict[str, bytes], emit: Emit) -> list[Finding]:
    meter, done, findings = Meter("verify", "bytes", sum(s.bytes for s in dumps)), 0, list[Finding]()
    told = time.monotonic()
    # threads: checksums and numpy work without the interpreter's lock
    with ThreadPoolExecutor(min(8, os.cpu_count() or 2)) as pool:
        results = pool.map(lambda s: check(folder, s, wanted.get(s.id)), dumps)
        for sample, found in zip(dumps, results, strict=True):
            findings += found
            done += sample.bytes
            if time.monotonic() - told > 0.5 or sample is dumps[-1]:
                told = time.monotonic()
                emit(meter.at(done, f"{len(findings)} faults"))
    return findings


def _strays(folder: Path, files: set[str]) -> Iterator[Finding]:
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        if entry.name in files or HOSTS_OWN.match(entry.name):
            continue
        if entry.name.endswith(".part"):
            yield Finding(entry.name, "part", "an unfinished transfer; hsops fetch continues it")
        else:
            yield Finding(entry.name, "stray", "the manifest does not name it")
