"""``hsops export``: the whole folder."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hsops import __version__
from hsops.core.container import read_metadata
from hsops.core.dump_check import Finding
from hsops.core.dumps import Sample, latest
from hsops.core.errors import BadDataError, UsageError
from hsops.core.events import Emit, Note
from hsops.core.manifest import duplicates, read_manifest, without_dump
from hsops.export.formats import Format, texts
from hsops.export.layers import Layers, is_new, layers, trunk_of
from hsops.export.making import ABOUT, Job, write_all
from hsops.export.rows import Row, check_dumps
from hsops.export.target import Target, open_target
from hsops.payload.hsops_hs_dump.strategy import LAST as NEWEST

CONFIG = "drafter-config.json"
_SAID = ("model", "revision", "architecture", "trunk", "sglang", "torch", "run", "patch", "convention", "flags")


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export did.

    Args:
        format: its name.
        complete: the data set can be read; without it, only some files are there.
        samples, tokens, bytes: of the data set; bytes as the dumps have them.
        made: how many of its files were made just now, by how: ``written``, ``reflink``, ``hard link``, ``copy``.
        unlearned: samples whose mask is all zeros.
        left_out: faults of dumps that have no row because the job is partial.
        findings: all other faults.
        layers: which layers the states are of.
        seconds: how long it took.
    """

    format: str
    complete: bool
    samples: int
    tokens: int
    bytes: int
    made: dict[str, int]
    unlearned: int
    left_out: tuple[Finding, ...]
    findings: tuple[Finding, ...]
    layers: Layers
    seconds: float


def export(job: Job, kind: Format, emit: Emit) -> Exported:
    """Check every dump, and write it as the trainer reads it. What is there already is left alone.

    Args:
        job: what.
        kind: the trainer's format.
        emit: told the progress.

    Raises:
        UsageError: a folder cannot be used, or the engine is not known.
        BadDataError: there is no manifest, or the dumps lack what the format needs.
        LockedError: another export writes there.
        SpaceError: it will not fit.
    """
    started = time.monotonic()
    _check_folders(job)
    if job.engine and is_new(job.engine):
        emit(Note(f"{job.engine} is newer than what the layer ids were read from: SGLang {NEWEST}", level="warn"))
    known, findings = _read(job)
    dumps = _wanted(job, known)
    first = check_dumps(list(dumps.values()), kind.needs)
    about = _about(job.source / first.file)
    found = layers(first.boundaries, job.engine, job.trunk or trunk_of(about))
    findings += without_dump(job.prompts or (), known)
    with open_target(job.to, kind.needs.name) as target:
        made, faults, chosen = write_all(job, kind, target, dumps, emit)
        findings += faults
        complete = bool(chosen) and (job.partial or not findings)
        if complete:
            kind.finish(target, chosen)
            _describe(kind, target, chosen, about, found)
            target.finish()
    return Exported(
        format=kind.needs.name,
        complete=complete,
        made=dict(made),
        left_out=tuple(findings) if complete else (),
        findings=() if complete else tuple(findings),
        layers=found,
        seconds=time.monotonic() - started,
        **_sums(chosen),
    )


def _sums(chosen: Sequence[Row]) -> dict[str, int]:
    return {
        "samples": len(chosen),
        "tokens": sum(row.sample.tokens for row in chosen),
        "bytes": sum(row.sample.bytes for row in chosen),
        "unlearned": sum(bool(row.mask) and not any(row.mask) for row in chosen),
    }


def _about(path: Path) -> dict[str, str]:
    """What a dump says of itself; nothing when it is none, which its own check will tell."""
    try:
        return read_metadata(path) if path.is_file() else {}
    except (BadDataError, OSError):
        return {}


def _check_folders(job: Job) -> None:
    source, to = job.source.resolve(), job.to.resolve()
    if to == source or source in to.parents or to in source.parents:
        raise UsageError(
            f"{job.to} and {job.source} lie in each other",
            why="verify and trainers would take each other's files for theirs",
            fix="--to a folder beside DIR, on the same file system where dumps are to be linked",
        )


def _read(job: Job) -> tuple[dict[str, Sample], list[Finding]]:
    """All samples of the manifest by id, and its faults."""
    samples, findings = read_manifest(job.source)
    return latest(samples), findings + duplicates(samples)


def _wanted(job: Job, known: Mapping[str, Sample]) -> dict[str, Sample]:
    named = None if job.prompts is None else {p.id for p in job.prompts}
    return {s.id: s for s in known.values() if s.ok and (named is None or s.id in named)}


def _describe(kind: Format, target: Target, rows: Sequence[Row], about: Mapping[str, str], found: Layers) -> None:
    """What the data set is of, for whoever finds it without its history, and the drafter's configuration."""
    sample = rows[0].sample
    said = {
        "format": kind.needs.name,
        "hsops": __version__,
        "samples": len(rows),
        "tokens": sum(row.sample.tokens for row in rows),
        "final": kind.needs.final,
        "dtype": sample.dtype,
        "hidden_size": sample.hidden_size,
        "layers": {k: v for k, v in asdict(found).items() if k in ("boundaries", "output_layers", "by_engine")},
        "dumps": {key: about[key] for key in _SAID if key in about},
    }
    _put_text(target, ABOUT, json.dumps(said, indent=2) + "\n")
    if found.config is None:
        target.remove(CONFIG)
    else:
        _put_text(target, CONFIG, json.dumps(found.config, indent=2) + "\n")


def _put_text(target: Target, file: str, text: str) -> None:
    path = target.path / file
    if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text:
        target.put(file, texts(text))
