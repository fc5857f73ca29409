"""What a fetch did, for people and machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hsops.core.units import clock, counted, size
from hsops.fetch.fetch import Fetched
from hsops.fetch.forecast import Forecast
from hsops.remote.dumps import Listing
from hsops.render.console import Outcome

SHOWN = 10


def outcome(fetched: Fetched, listing: Listing | None, *, host: str, to: str, **where: str) -> Outcome:
    """Exit 3 when something did not come. ``listing`` is of a folder of dumps."""
    counts = {key: getattr(fetched, key) for key in _COUNTS}
    data: dict[str, Any] = {"host": host, "to": to, **where, "files": len(fetched.files), **counts}
    data["troubles"] = [asdict(t) for t in fetched.troubles]
    if listing is not None:
        here = [s for s in listing.samples.values() if s.ok and s.file in fetched.files]
        failed = {s.id: s.reason for s in listing.samples.values() if not s.ok}
        data |= {"samples": len(here), "tokens": sum(s.tokens for s in here), "failed": failed}
    fix = {"missing": f"fetch into the folder that has it; if that is lost: {_remake(to)}"} if listing else {}
    errors = tuple(
        {"type": "Trouble", **asdict(t), "host": host, **({"fix": fix[t.code]} if t.code in fix else {})}
        for t in fetched.troubles
    )
    return Outcome(data, list(lines(fetched, data)), 3 if errors else 0, errors)


def together(outcomes: dict[str, Outcome]) -> Outcome:
    """Of several servers into one folder; the first that is not 0 gives the exit code."""
    all_ = list(outcomes.values())
    sums = {
        key: sum(one.data.get(key, 0) for one in all_)
        for key in ("files", "bytes", "fetched", "bytes_sent", "samples", "tokens")
    }
    data = {"to": all_[0].data["to"], **sums, "servers": [one.data for one in all_]}
    lines = [f"{name}: {line}" for name, one in outcomes.items() for line in one.lines]
    code = next((one.exit_code for one in all_ if one.exit_code), 0)
    return Outcome(data, lines, code, tuple(error for one in all_ for error in one.errors))


_COUNTS = ("bytes", "fetched", "bytes_sent", "lost_streams", "bad_checksums", "streams", "channel", "seconds",
           "evicted", "evicted_bytes",
    "ledger", "kept")  # fmt: skip


def lines(fetched: Fetched, data: dict[str, Any]) -> Iterator[str]:
    """The report."""
    count = (
        f"{counted(data['samples'], 'sample')} · {data['tokens']:,} tokens"
        if "samples" in data
        else counted(data["files"], "file")
    )
    total, to = f"{count} · {size(fetched.bytes)}", data["to"]
    if not fetched.fetched and not fetched.troubles:
        yield f"nothing to do: {total} are in {to}, whole"
    else:
        yield f"{total} · {counted(len(fetched.troubles), 'error')} · in {to}, every file checked"
        yield " · ".join(_way(fetched))
    if fetched.evicted:
        gone = f"{counted(fetched.evicted, 'file')}, {size(fetched.evicted_bytes)}"
        yield f"{gone}, removed on {data['host']}: {fetched.ledger}"
    if fetched.kept:
        yield f"{counted(len(fetched.kept), 'file')} left on {data['host']}:"
        yield from _listed([f"{name}  {why}" for name, why in fetched.kept.items()])
    yield from _listed([f"{t.id}  {t.message}" for t in fetched.troubles])
    if "samples" in data and any(t.code == "missing" for t in fetched.troubles):
        yield f"what {data['host']} has not any more is safe in another folder as a rule (--evict, --drain): fetch into"
        yield f"that one; if it is lost, this makes it again: {_remake(data['to'])}"
    if failed := data.get("failed"):
        yield f"{counted(len(failed), 'sample')} failed on {data['host']}, without a dump; hsops extract tries again:"
        yield from _listed([f"{id_}  {reason}" for id_, reason in failed.items()])


def _remake(to: str) -> str:
    return f"hsops extract PROMPTS --drain {to} --remake"


def forecast(found: Forecast, *, host: str, to: str, **where: str) -> Outcome:
    """``--dry-run``. Exit 1 when the fetch would refuse."""
    data = {"host": host, "to": to, **where, **asdict(found), "eta_s": found.eta_s}
    short = found.free is not None and found.bytes_to_send > found.free
    return Outcome(data, list(_forecast_lines(found, host, to)), 1 if short or found.conflicts else 0)


def _forecast_lines(found: Forecast, host: str, to: str) -> Iterator[str]:
    yield f"{counted(found.files, 'file')}, {size(found.bytes)}, on {host}"
    if found.files_to_check:
        yield f"{counted(found.files_to_check, 'file')}, {size(found.bytes_to_check)}, in {to} would be read first"
    if not found.files_to_send:
        yield "nothing would be sent"
        return
    eta = (
        f" · about {_duration(found.eta_s)} at {size(found.rate)}/s ({found.channel}, one stream)" if found.rate else ""
    )
    yield f"{counted(found.files_to_send, 'file')}, {size(found.bytes_to_send)}, would be sent{eta}"
    if found.free is not None and found.bytes_to_send > found.free:
        yield f"they do not fit: {to} has {size(found.free)} free"
    if found.conflicts:
        yield f"{len(found.conflicts)} are of other prompts than the dumps of the same ids in {to}: choose another --to"
    yield from _listed([f"{t.id}  {t.message}" for t in found.troubles])


def _duration(seconds: float | None) -> str:

    return clock(seconds or 0.0)


def _way(fetched: Fetched) -> Iterator[str]:
    yield f"{fetched.fetched:,} fetched in {fetched.seconds:.1f} s"
    yield f"{size(fetched.bytes_sent)} sent"
    if fetched.seconds:
        yield f"{size(fetched.bytes_sent / fetched.seconds)}/s"
    if fetched.channel:
        yield f"{fetched.channel}, {counted(fetched.streams, 'stream')}"
    if fetched.lost_streams:
        yield f"{counted(fetched.lost_streams, 'stream')} lost and opened again"
    if fetched.bad_checksums:
        yield f"{counted(fetched.bad_checksums, 'wrong checksum')}, sent again"


def _listed(texts: list[str]) -> Iterator[str]:
    for text in texts[:SHOWN]:
        yield f"  {text}"
    if len(texts) > SHOWN:
        yield f"  and {len(texts) - SHOWN} more (--json has all)"
