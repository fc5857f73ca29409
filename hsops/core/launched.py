"""What was launched, as far as two launches must agree to be compared: the key of a baseline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hsops.core.runs import Run
from hsops.core.secret import masked, value_of

# where it listens is no difference, nor where its nodes meet; the model has a field of its own
_PLACES = ("--port", "--host", "--model-path", "--dist-init-addr", "--node-rank")


@dataclass(frozen=True, slots=True)
class Launched:
    """Two launches with the same values log alike and take alike.

    Args:
        sglang: its version.
        model: path or hub id.
        tp: ranks.
        patches: name -> identity.
        flags: each with its values, sorted, as ``--dtype float32``; secrets masked.
    """

    sglang: str
    model: str
    tp: int
    patches: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Eight letters and figures, equal for equal values."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:8]

    def differences(self, other: Launched) -> Iterator[str]:
        """What ``other`` has otherwise, in words."""
        for name in ("sglang", "model", "tp"):
            if (mine := getattr(self, name)) != (its := getattr(other, name)):
                yield f"{name} {its or 'unknown'}, here {mine or 'unknown'}"
        for name in sorted({*self.patches, *other.patches}):
            mine, its = self.patches.get(name, "none"), other.patches.get(name, "none")
            if mine != its:
                yield f"patch {name} {its}, here {mine}"
        yield from (f"without {flag}" for flag in self.flags if flag not in other.flags)
        yield from (f"with {flag}" for flag in other.flags if flag not in self.flags)


def launched(run: Run) -> Launched:
    """Of a run, from its command line."""
    return Launched(
        sglang=run.sglang,
        model=value_of(run.argv, "--model-path"),
        tp=run.tp,
        patches=dict(run.patches),
        flags=tuple(sorted(_flags(masked(run.argv)))),
    )


def parse_launched(raw: Mapping[str, Any]) -> Launched:
    """The reverse of ``asdict``."""
    return Launched(raw["sglang"], raw["model"], raw["tp"], dict(raw["patches"]), tuple(raw["flags"]))


def _flags(words: Sequence[str]) -> Iterator[str]:
    group: list[str] = []
    for word in [*words, "--"]:
        if word.startswith("--"):
            if group and group[0] not in _PLACES:
                yield " ".join(group)
            group = [word]
        elif group:
            group.append(word)
