"""The steps of a server's start that its log shows, as data.

Sources: SGLang's own sources of 0.5.4, 0.5.6 - 0.5.9, 0.5.12 - 0.5.14, 0.5.17, 0.5.18 and 0.5.20 - 0.5.23, and recorded
logs of 0.5.9 and 0.5.23 (``tests/cases/logs``). The texts of different versions do not collide, so a reader that does
not know the version tries all of them; ``since`` and ``until`` are the versions in which a text was seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

ONCE, RANK = "once", "rank"


@dataclass(frozen=True, slots=True)
class Text:
    """What SGLang says, matched at the start of a message; first and last version seen, "" for open ends."""

    pattern: str
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True)
class Milestone:
    """One step of a server's start-up.

    Args:
        id: a stable word.
        stage: the row of the milestone x rank matrix it belongs to.
        scope: ``once``: the main process or rank 0 says it; ``rank``: every rank says it.
        texts: its wordings.
        ends: the stage is over when this is reached (by every rank).
        optional: a healthy start may lack it.
        note: what a reader should know.
    """

    id: str
    stage: str
    scope: str
    texts: tuple[Text, ...]
    ends: bool = False
    optional: bool = False
    note: str = ""


def _step(stage: str, scope: str, name: str, *texts: str | Text, note: str = "") -> Milestone:
    """A row: a ``!`` after the name ends the stage, a ``?`` makes it optional."""
    wordings = tuple(text if isinstance(text, Text) else Text(text) for text in texts)
    return Milestone(name.rstrip("!?"), stage, scope, wordings, "!" in name, "?" in name, note)


STAGES = ("arguments", "distributed", "weights", "kv cache", "graphs", "http", "warm-up")

MILESTONES = (
    _step(
        "arguments",
        ONCE,
        "arguments!",
        Text(r"server_args=ServerArgs\(", until="0.5.18"),
        Text(r"server_args=\{", since="0.5.20"),
    ),
    _step(
        "distributed",
        RANK,
        "distributed-begin",
        Text(r"Init torch distributed begin", until="0.5.20"),
        Text(r"Init parallel begin", since="0.5.21"),
        note="ranks may start 2-5 s apart",
    ),
    _step("distributed", ONCE, "nccl?", r"sglang is using nccl==", note="rank 0; the last line of most P2P hangs"),
    _step(
        "distributed",
        RANK,
        "distributed!",
        Text(r"Init torch distributed ends\b", until="0.5.20"),
        Text(r"Init parallel ends\b", since="0.5.21"),
    ),
    _step("weights", RANK, "weights-begin", r"Load weight begin\b"),
    _step("weights", RANK, "weights!", r"Load weight end\b", note="ranks may be minutes apart (11 min seen)"),
    _step("kv cache", RANK, "kv-cache?", r"KV Cache is allocated\b", note="what follows differs by version"),
    _step("kv cache", RANK, "memory-pool!", r"Memory pool end\b"),
    _step(
        "graphs",
        RANK,
        "graphs-begin?",
        r"Capture .*\b(cuda|CUDA|cpu|npu|xpu) graph begin\b",
        note="7 s to 22 min in launches that succeeded; absent with graphs disabled",
    ),
    _step(
        "graphs",
        RANK,
        "graphs?!",
        r"Capture .*\b(cuda|CUDA|cpu|npu|xpu) graph end\b",
        note="several captures (prefill, decode, draft): the first counts",
    ),
    _step("graphs", ONCE, "tokens?", r"max_total_num_tokens=", note="each rank in 2025-03, rank 0 since"),
    _step("http", ONCE, "http-process", r"INFO: +Started server process \["),
    _step("http", ONCE, "http!", r"INFO: +Uvicorn running on ", note="the port opens here, not before"),
    _step(
        "warm-up",
        ONCE,
        "warmup-probe?",
        Text(r'INFO: .*"GET /get_model_info HTTP/[\d.]+" 200', until="0.5.4"),
        Text(r'INFO: .*"GET /model_info HTTP/[\d.]+" 200', since="0.5.6"),
        note="/health answers 503 until the end",
    ),
    _step(
        "warm-up",
        ONCE,
        "warmup-prefill?",
        Text(r"Prefill batch \[\d+\], #new-seq", until="0.5.4"),
        Text(r"Prefill batch[.,] #new-seq", since="0.5.6"),
    ),
    _step("warm-up", ONCE, "warmup-reply?", r'INFO: .*"POST /generate HTTP/[\d.]+" 200'),
    _step("warm-up", ONCE, "ready!", r"The server is fired up and ready to roll!"),
)
BY_ID: Mapping[str, Milestone] = {m.id: m for m in MILESTONES}
_PATTERNS = tuple((re.compile("|".join(f"(?:{t.pattern})" for t in m.texts)), m) for m in MILESTONES)


def milestones_of(text: str) -> Iterator[Milestone]:
    """The milestones that a message is."""
    for pattern, milestone in _PATTERNS:
        if pattern.match(text):
            yield milestone


def stage_end(stage: str) -> Milestone:
    """The milestone that ends ``stage``."""
    return next(m for m in MILESTONES if m.stage == stage and m.ends)
