"""The checks: what each is called, what its failure means, and what then. Data, and the result's type."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

PASS, FAIL, SKIPPED = "pass", "fail", "skipped"

AGAIN = "hsops deploy && hsops launch --replace --wait-healthy, then this again"
NO_TRAINING = "do not train on dumps of this run; report it with --json"


class Kind(NamedTuple):
    """What a check looks at, what its failure means, and what to do then."""

    title: str
    means: str
    fix: str


KINDS = {
    "hello": Kind(
        "every rank captures",
        "rows are missing: a rank refuses, or never said that it captures",
        f"put right what the reason names (usually a launch flag); {AGAIN}",
    ),
    "ranks": Kind(
        "all ranks hold the same rows",
        "a state was taken before the ranks' all-reduce: each rank holds its own part of the sum, and only rank 0's is "
        "in the data set",
        NO_TRAINING,
    ),
    "distinct": Kind(
        "every boundary has a state of its own",
        "a state was kept by reference and a later layer wrote into it: the boundaries hold a later state's numbers",
        NO_TRAINING,
    ),
    "repeat": Kind(
        "the same prompt twice, alone",
        "rows come from a prefix cache instead of the forward pass, or the states depend on what ran before",
        f"launch with --disable-radix-cache; {AGAIN}",
    ),
    "batch": Kind(
        "alone and in a large batch",
        "the capture takes another value in large passes than in small ones (a partial sum where the all-reduce is "
        "left to the next layer), or rows of other prompts",
        NO_TRAINING,
    ),
    "cut": Kind(
        "whole and in two prefill chunks",
        "rows at the border of two chunks are lost, doubled or of another prompt",
        NO_TRAINING,
    ),
    "lm_head": Kind(
        "the final state against the server's own log-probabilities",
        "the final state is not what the model's head gets, or rows and tokens are shifted against each other",
        NO_TRAINING,
    ),
}


@dataclass(frozen=True, slots=True)
class Check:
    """How one check ended.

    Args:
        name: key of ``KINDS``.
        status: ``pass``, ``fail`` or ``skipped``.
        reason: one sentence: what was seen, or why it was skipped.
        figures: numbers, JSON values.
        threshold: what the figures had to be; empty when nothing was measured.
    """

    name: str
    status: str
    reason: str
    figures: dict[str, Any] = field(default_factory=dict)
    threshold: str = ""

    @property
    def kind(self) -> Kind:
        """What it looks at."""
        return KINDS[self.name]

    def as_json(self) -> dict[str, Any]:
        """For the envelope; a failed check says what it means and what to do."""
        told: dict[str, Any] = {"name": self.name, "title": self.kind.title, "status": self.status}
        told |= {"reason": self.reason, "figures": self.figures, "threshold": self.threshold}
        return {**told, "means": self.kind.means, "fix": self.kind.fix} if self.status == FAIL else told


def skipped(name: str, reason: str) -> Check:
    """A check that could not be made: never a pass."""
    return Check(name, SKIPPED, reason)
