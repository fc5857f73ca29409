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
        "each rank holds numbers of its own, and only rank 0's are in the data set; a state that is taken before the "
        "ranks' all-reduce is such a part of a sum",
        NO_TRAINING,
    ),
    "distinct": Kind(
        "every boundary has a state of its own",
        "two boundaries hold the same numbers; a state that is kept by reference ends so, when a later layer writes "
        "into it",
        NO_TRAINING,
    ),
    "repeat": Kind(
        "the same prompt twice, alone",
        "rows are missing (from a prefix cache), or states depend on what ran before and the server's own "
        "log-probabilities do not bear that out",
        f"where rows came from a cache launch with --disable-radix-cache; {AGAIN}",
    ),
    "batch": Kind(
        "alone and in a large batch",
        "in a large pass the captured states are others than alone, and nothing shows that the model computes them so; "
        "a partial sum (the all-reduce left to the next layer) and rows of other prompts look like this",
        NO_TRAINING,
    ),
    "cut": Kind(
        "whole and in two prefill chunks",
        "in two chunks the captured states are others than whole, and nothing shows that the model computes them so; "
        "rows that are lost, doubled or of another prompt at the border look like this",
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
