"""Everything that is known of a class, in one place: ``hsops explain`` prints it, and verdicts are filled from it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from hsops.core.errors import UsageError
from hsops.diagnose.knowledge_host import HOST
from hsops.diagnose.knowledge_run import RUN
from hsops.diagnose.signature_table import SIGNATURES
from hsops.diagnose.signatures import CRASHED, DIED, NAN, WARMUP_FAILED, Signature
from hsops.diagnose.taxonomy import FAMILIES, UNKNOWN, family_of, meaning
from hsops.diagnose.verdict import Verdict

_KNOWN = HOST | RUN
_ALL = (*SIGNATURES, DIED, CRASHED, WARMUP_FAILED, NAN)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Of one class: what it means and does (``word``), what to do, what would confirm it, by which words it is told."""

    name: str
    family: str
    meaning: str
    word: str
    remedy: str
    confirm: str
    signatures: tuple[Signature, ...]

    def as_json(self) -> dict[str, Any]:
        """``data`` of the JSON envelope."""
        rows = [
            {
                "words": s.pattern.pattern,
                "also": s.also,
                "stage": s.stage,
                "versions": s.versions,
                "source": s.source,
                "confidence": s.confidence,
                "remedy": s.remedy,
                "alternatives": list(s.likes),
            }
            for s in self.signatures
        ]
        plain = {"class": self.name, "family": self.family, "meaning": self.meaning, "state": self.word}
        return plain | {"remedy": self.remedy, "confirm": self.confirm, "signatures": rows}


def about(name: str) -> Knowledge:
    """What is known of a class.

    Raises:
        UsageError: there is no such class.
    """
    if name not in _KNOWN:
        near = difflib.get_close_matches(name, [*_KNOWN, *FAMILIES], 1)
        fix = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"there is no class {name!r}", fix=f"{fix}hsops explain lists all of them")
    remedy, confirm = _KNOWN[name]
    rows = tuple(s for s in _ALL if s.name == name)
    return Knowledge(name, family_of(name), meaning(name), Verdict(name, "", "").word, remedy, confirm, rows)


def filled(verdict: Verdict) -> tuple[str, str]:
    """A verdict's remedy and next probe; where its rule said none, those of its class."""
    remedy, confirm = _KNOWN.get(verdict.name, ("", ""))
    if verdict.name == UNKNOWN or verdict.moving:
        return verdict.remedy, verdict.next_probe
    return verdict.remedy or remedy, verdict.next_probe or ("" if verdict.confidence == "high" else confirm)
