"""What a fetch did, for people and machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from hsops.core.units import size
from hsops.fetch.fetch import Fetched
from hsops.render.console import Outcome

SHOWN = 10


def outcome(fetched: Fetched, *, server: str, host: str, source: str, to: str) -> Outcome:
    """Exit 3 when something did not come."""
    data = {"server": server, "host": host, "source": source, "to": to, **asdict(fetched)}
    errors = tuple({"type": "Trouble", **asdict(t), "host": host} for t in fetched.troubles)
    return Outcome(data, list(lines(fetched, host=host, to=to)), 3 if errors else 0, errors)


def lines(fetched: Fetched, *, host: str, to: str) -> Iterator[str]:
    """The report."""
    total = f"{fetched.samples:,} samples · {fetched.tokens:,} tokens · {size(fetched.bytes)}"
    errors = f"{len(fetched.troubles)} errors"
    if not fetched.fetched and not fetched.troubles:
        yield f"nothing to do: {total} are in {to}, whole"
    else:
        yield f"{total} · {errors} · in {to}, every file checked"
        rate = f" · {size(fetched.bytes_sent / fetched.seconds)}/s" if fetched.seconds else ""
        lost = f" · {fetched.lost_streams} streams lost and opened again" if fetched.lost_streams else ""
        yield f"{fetched.fetched:,} fetched in {fetched.seconds:.1f} s · {size(fetched.bytes_sent)} sent{rate}{lost}"
    yield from _listed([f"{t.id}  {t.message}" for t in fetched.troubles])
    if fetched.failed:
        yield f"{len(fetched.failed)} samples failed on {host} and have no dump; hsops extract tries them again:"
        yield from _listed([f"{id_}  {reason}" for id_, reason in fetched.failed.items()])


def _listed(texts: list[str]) -> Iterator[str]:
    for text in texts[:SHOWN]:
        yield f"  {text}"
    if len(texts) > SHOWN:
        yield f"  and {len(texts) - SHOWN} more (--json has all)"
