"""What the rules concluded, with the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hsops.diagnose.taxonomy import MOVING, UNKNOWN, family_of


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of evidence: where it was seen (``log``, ``processes``, ``threads`` ...) and what."""

    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A conclusion.

    Args:
        name: the class, one of ``taxonomy``.
        confidence: ``high``, ``medium`` or ``low``.
        summary: one sentence for a person.
        evidence: what it rests on, and what could not be seen.
        rank: the suspect; None when all share the cause or none is meant.
        remedy: what to do or type; may be empty.
        next_probe: what would tell more; empty when the verdict is certain.
        host: the host's name in the inventory; empty for a log alone.
        alternatives: classes of which the evidence could also speak, the likeliest first.
    """

    name: str
    confidence: str
    summary: str
    evidence: tuple[Finding, ...] = ()
    rank: int | None = None
    remedy: str = ""
    next_probe: str = ""
    host: str = ""
    alternatives: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The class's family."""
        return family_of(self.name)

    @property
    def moving(self) -> bool:
        """The server works or is on its way."""
        return self.name in MOVING

    @property
    def word(self) -> str:
        """The verdict in one word for people."""
        if self.name == UNKNOWN:
            return "UNKNOWN"
        if self.moving:
            return "OK" if self.name.startswith("healthy") else "WAIT"
        return "HUNG" if self.hung else "DOWN"

    @property
    def hung(self) -> bool:
        """Processes are there and will not go on by themselves."""
        return self.family in _HANGS or self.name in _HUNG

    @property
    def exit_code(self) -> int:
        """0: works or is on its way; 7: dead or hung; 1: could not tell."""
        if self.name == UNKNOWN:
            return 1
        return 0 if self.moving else 7

    def as_json(self) -> dict[str, Any]:
        """``data.verdict`` of the JSON envelope."""
        return {
            "class": self.name,
            "family": self.family,
            "confidence": self.confidence,
            "host": self.host or None,
            "rank": self.rank,
            "summary": self.summary,
            "evidence": [{"source": f.source, "text": f.text} for f in self.evidence],
            "remedy": self.remedy,
            "next_probe": self.next_probe,
            "alternatives": list(self.alternatives),
        }


_HANGS = frozenset({"runtime-deadlock", "collective", "p2p-collective", "rendezvous"})
_HUNG = frozenset(
    {
        *("warmup-deadlock-busy-wait", "warmup-forward-stuck", "rank-stopped", "tokenizer-blocked"),
        *("hang-in-weight-loading", "post-load-silence-unresolved", "rank-straggler-load", "rendezvous-hang"),
        *("jit-loading-stuck", "jit-stale-lock", "autotune-rank-desync-deadlock", "nccl-init-hang-preload-interposer"),
        "gpu-driver-spin",
    }
)
