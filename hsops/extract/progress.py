"""How far an extract is: samples for people to count, tokens to tell the time by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hsops.core.events import Progress
from hsops.core.meter import Meter
from hsops.core.prompts import Prompt
from hsops.core.units import size
from hsops.extract.pool import Tally


@dataclass(frozen=True, slots=True)
class Extracting(Progress):
    """Progress with what else grows.

    Args:
        tokens, bytes: of the dumps made by now.
        tokens_per_s: over the last seconds.
        failed: prompts that were given up.
        full: the used share of the host's dump file system, 0 to 1; of several hosts the fullest one's.
    """

    tokens: int = 0
    tokens_per_s: float = 0.0
    bytes: int = 0
    failed: int = 0
    full: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """As any progress."""
        return {"event": "progress", **asdict(self)}


class Pulse:
    """Makes the events.

    Args:
        prompts: all.
        todo: those of them that have no dump yet.
    """

    def __init__(self, prompts: Sequence[Prompt], todo: Sequence[Prompt]) -> None:
        self._before = len(prompts) - len(todo)
        self._samples = Meter("extract", "samples", len(prompts), begun=self._before)
        self._tokens = Meter("extract", "tokens", sum(prompt.count for prompt in todo))

    def at(self, made: Tally, failed: int, short: Sequence[str] = (), full: float = 0.0) -> Extracting:
        """The event for what was ``made`` by now, how many prompts were given up, and which servers are ``short``."""
        samples, tokens = self._samples.at(self._before + made.samples), self._tokens.at(made.tokens)
        detail = f"{made.tokens:,} tokens · {tokens.rate:,.0f} tokens/s · {size(made.bytes)} · {failed:,} failed"
        if full:
            detail += f" · host's dump disk {full:.0%}"
        if short:
            detail += f" · no room on the host of {', '.join(short)}: waiting for a fetch --evict"
        return Extracting(
            task=samples.task,
            done=samples.done,
            total=samples.total,
            unit=samples.unit,
            rate=samples.rate,
            eta_s=tokens.eta_s,
            detail=detail,
            tokens=made.tokens,
            tokens_per_s=tokens.rate,
            bytes=made.bytes,
            failed=failed,
            full=full,
        )
