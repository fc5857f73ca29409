"""What an extract did, for people and machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from hsops.core.errors import HsopsError
from hsops.core.units import clock, counted, size
from hsops.extract.job import Extracted, ServerRow
from hsops.extract.pool import Failure
from hsops.render.console import Outcome, error_lines

SHOWN = 10
INTERRUPTED = 130


def outcome(extracted: Extracted, failures: Path | None = None, *, drained: bool = False) -> Outcome:
    """Exit 3 when a prompt was given up, that of the error when a server was lost and prompts are left.

    Args:
        extracted: what was done.
        failures: file for the prompts that were given up.
        drained: a fetch goes on beside it, and need not be named as the next thing to do.
    """
    unwritten = _write(failures, extracted.failures) if failures else None
    errors: list[dict[str, Any]] = [one for error in (extracted.stopped, unwritten) if error for one in error.as_json()]
    errors += [{"type": "Failure", **asdict(f), "message": f"{f.id}: {f.reason}"} for f in extracted.failures]
    if extracted.interrupted:
        errors.append({"type": "Interrupted", "message": "interrupted"})
    code = INTERRUPTED if extracted.interrupted else extracted.stopped.exit_code if extracted.stopped else 0
    told = [*lines(extracted, drained=drained), *(error_lines(unwritten) if unwritten else [])]
    return Outcome(_data(extracted), told, code or (3 if extracted.failures else int(bool(errors))), tuple(errors))


def _write(path: Path, failures: tuple[Failure, ...]) -> HsopsError | None:
    """What is told beside the report, which must not be lost with the file: a disk that is full by now, for example."""
    try:
        path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in failures), encoding="utf-8")
    except OSError as error:
        return HsopsError(f"--failures {path} was not written: {error.strerror}", fix="--json has them all")
    return None


def _data(extracted: Extracted) -> dict[str, Any]:
    names = [field.name for field in fields(extracted) if field.name not in ("failures", "servers", "stopped")]
    data: dict[str, Any] = {name: getattr(extracted, name) for name in names}
    rows = extracted.servers
    for key in ("server", "host", "folder", "run"):
        data[key] = ",".join(dict.fromkeys(filter(None, (getattr(row, key) for row in rows))))
    data["failures"] = [asdict(one) for one in extracted.failures]
    return data | {"servers": [asdict(row) for row in rows]}


def lines(extracted: Extracted, *, drained: bool = False) -> Iterator[str]:
    """The report."""
    sums = f"{extracted.tokens:,} tokens · {size(extracted.bytes)}"
    fetch = "" if drained else f"next: {_fetch(extracted.servers)}"
    if extracted.already == extracted.prompts:
        yield f"{extracted.already:,} of {extracted.prompts:,} done already · {sums}" + (f" · {fetch}" if fetch else "")
        return
    already = f" · {extracted.already:,} were done already" if extracted.already else ""
    errors = counted(len(extracted.failures), "error")
    yield f"{counted(extracted.samples, 'sample')} · {sums} · {errors} · {clock(extracted.seconds)}{already}"
    if len(extracted.servers) > 1:
        yield from _table(extracted.servers)
    yield from _failures(extracted.failures)
    if extracted.stopped:
        yield from error_lines(extracted.stopped)
    elif extracted.interrupted:
        left = extracted.prompts - extracted.samples - len(extracted.failures)
        yield f"interrupted: {left:,} are left; the same line again goes on with them"
    elif extracted.failures:
        yield "next: the same line again tries what is missing"
    elif fetch:
        yield fetch


def _failures(failures: tuple[Failure, ...]) -> Iterator[str]:
    for failure in failures[:SHOWN]:
        more = len(failure.tried) - failure.attempts
        before = f", in earlier extracts {_times(more)}" if more > 0 else ""
        place, sent = f"{'row' if failure.row else 'line'} {failure.line}", _times(failure.attempts)
        yield f"  {failure.id} ({place}, {'sent ' * bool(failure.attempts)}{sent}{before})  {failure.reason}"
    if len(failures) > SHOWN:
        yield f"  and {len(failures) - SHOWN} more (--json has all, --failures FILE writes them down)"


def _times(count: int) -> str:
    return f"{count} times" if count > 1 else "once" if count else "not sent"


def _table(rows: tuple[ServerRow, ...]) -> Iterator[str]:
    wide, hosts = (max(6, *(len(getattr(row, key)) for row in rows)) for key in ("server", "host"))
    yield f"{'server':{wide}}  {'host':{hosts}}  {'before':>7}  {'now':>7}  {'tokens':>12}  {'size':>10}"
    for row in rows:
        said = [f"started again {row.relaunched} times"] if row.relaunched else []
        said += [f"LOST: {row.error}"] if row.error else []
        counts = f"{row.already:>7,}  {row.samples:>7,}  {row.tokens:>12,}  {size(row.bytes):>10}"
        yield f"{row.server:{wide}}  {row.host:{hosts}}  {counts}  {'; '.join(said)}".rstrip()


def _fetch(rows: tuple[ServerRow, ...]) -> str:
    return f"hsops fetch -s {','.join(row.server for row in rows)} --to DIR" if len(rows) > 1 else "hsops fetch"
