"""A folder of dumps here, as its manifest has it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from hsops.core.dump_check import Finding
from hsops.core.dumps import MANIFEST, Sample, parse_sample
from hsops.core.errors import BadDataError, UsageError
from hsops.core.files import open_file
from hsops.core.prompts import Prompt

_FETCH = "hsops fetch --to DIR writes it"


def read_manifest(folder: Path) -> tuple[list[Sample], list[Finding]]:
    """The manifest's samples, and a finding for every line that is none.

    Raises:
        UsageError: no such folder.
        BadDataError: it has no manifest, or what has that name is no file.
        OSError: the manifest cannot be read.
    """
    try:
        with open_file(folder / MANIFEST, fix=f"move it away; {_FETCH}") as file:
            text = file.read().decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder", fix="DIR is where hsops fetch put the dumps") from None
        raise BadDataError(f"{folder} has no {MANIFEST}", fix=_FETCH) from None
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
            yield Finding(f"{prompt.id}.safetensors", "no-dump", f"{reason} (prompts {prompt.place})")


def _read_line(number: int, line: str, samples: list[Sample], findings: list[Finding]) -> None:
    try:
        samples.append(parse_sample(line))
    except BadDataError as error:
        findings.append(Finding(MANIFEST, "manifest", f"line {number}: {error.message}"))
