"""What was seen of a server's capture, before it is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hsops.core.dumps import Sample


@dataclass(frozen=True, slots=True)
class Taken:
    """What one rank wrote of one check request.

    Args:
        sample: its manifest line.
        passes: rows of each forward pass that P was part of, P's own and all others'.
    """

    sample: Sample
    passes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scores:
    """The log-probabilities of P's tokens 1 to T-1, each given the tokens before it.

    Args:
        ours: computed from the final state.
        server: the server's.
        agreement: share of the places where both have the same most probable token.
        largest: absolute value of the largest logit.
    """

    ours: Sequence[float]
    server: Sequence[float]
    agreement: float
    largest: float
