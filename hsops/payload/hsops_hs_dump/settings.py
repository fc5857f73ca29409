"""What was deployed (config.json beside this file) and what the launch says (two variables)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

DUMP_DIR, RUN, CHECK_RANKS = "SGLANG_HS_DUMP_DIR", "SGLANG_HS_RUN", "SGLANG_HS_CHECK_RANKS"
WRITERS, SLOTS = "SGLANG_HS_WRITERS", "SGLANG_HS_SLOTS"
WRITER_THREADS, RING_SLOTS, MOST = 4, 16, 256


@dataclass(frozen=True)
class Settings:
    """What to capture and where to put it.

    Args:
        identity: of the deployed patch.
        boundaries: ascending; boundary k is the residual stream just before layer k.
        final: which states after the last layer: ``pre-norm``, ``post-norm``, ``both`` or ``none``.
        dump_dir: where dumps, manifest and hello files go.
        run: id of the run, for the names of hello files.
        check_ranks: every rank writes its own dumps, rank N > 0 below ``rank<N>/``: for tests that compare ranks.
        writers: threads that write files.
        ring_slots: of pinned memory, 64 MiB each; none on a CPU.
    """

    identity: str
    boundaries: tuple[int, ...]
    final: str
    dump_dir: str
    run: str
    check_ranks: bool
    writers: int = WRITER_THREADS
    ring_slots: int = RING_SLOTS

    @property
    def slots(self) -> int:
        """States of each row in ``hidden_states``: the boundaries, and the state before the last norm."""
        return len(self.boundaries) + (self.final in ("pre-norm", "both"))

    @property
    def last(self) -> bool:
        """The state after the last norm is kept too, as ``last_hidden_states``."""
        return self.final in ("post-norm", "both")


def load(environ: Mapping[str, str], text: str | None = None) -> Settings:
    """The settings of this process.

    Args:
        environ: ``os.environ``.
        text: the configuration's JSON; None reads config.json.

    Raises:
        OSError, ValueError, KeyError: there is no usable config.json, or a variable has no usable value.
    """
    if text is None:
        with open(os.path.join(os.path.dirname(__file__), "config.json"), encoding="utf-8") as file:
            text = file.read()
    raw = json.loads(text)
    return Settings(
        identity=str(raw["identity"]),
        boundaries=tuple(sorted({int(k) for k in raw["boundaries"]})),
        final=str(raw["final"]),
        dump_dir=environ[DUMP_DIR],
        run=environ.get(RUN) or "unnamed",
        check_ranks=environ.get(CHECK_RANKS) == "1",
        writers=_number(environ, WRITERS, WRITER_THREADS),
        ring_slots=_number(environ, SLOTS, RING_SLOTS),
    )


def _number(environ: Mapping[str, str], name: str, usual: int) -> int:
    text = environ.get(name) or str(usual)
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise ValueError(f"{name}={text!r}: a number from 1 to {MOST} is expected")
    return int(text)
