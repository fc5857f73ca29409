"""What is asked of a server to check its capture. Pure: the server's limits in, requests out.

One prompt, P, is the subject of all checks. It is sent alone, alone again, alone with its log-probabilities, in the
middle of a large batch, and behind so much else that the end of a prefill chunk falls into it. What else is in those
batches is not captured.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SUBJECT = 300  # tokens of P where the server has room for them
LARGE = 2048  # up to so many tokens a pass SGLang fuses the all-reduce into the next norm
FIRST = 8  # tokens of the request that is computed while the others of its batch arrive
SHORTEST = 8  # a P below this says nothing
SEED = 20261130  # the same prompts every time: figures of two runs can be compared
ALONE, AGAIN, SCORED, BATCH, CUT = "alone", "again", "scored", "batch", "cut"


@dataclass(frozen=True, slots=True)
class Room:
    """What a server takes.

    Args:
        prompt: tokens of the longest prompt.
        cache: tokens of all requests together (KV cache), pages counted whole.
        chunk: rows of one prefill pass; None when prompts are not cut.
        requests: at once.
        page: tokens of a page of the cache.
        vocabulary: token ids are smaller.
    """

    prompt: int
    cache: int
    chunk: int | None
    requests: int
    page: int
    vocabulary: int

    @property
    def rows(self) -> int:
        """Rows of the largest pass that can be had."""
        return min(self.cache, self.chunk or self.cache)


@dataclass(frozen=True, slots=True)
class Call:
    """One ``/generate`` with one or more prompts.

    Args:
        name: of the captured prompt, P.
        before, after: lengths of the prompts around it, in order.
        scored: the log-probabilities of P's tokens are wanted.
    """

    name: str
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    scored: bool = False

    @property
    def key(self) -> str:
        """What its answer is kept under: a call that is sent once more for its log-probabilities has another."""
        return scored_name(self.name) if self.scored and self.name != SCORED else self.name

    def tokens(self, subject: int) -> int:
        """Of all its prompts."""
        return sum(self.before) + subject + sum(self.after)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send.

    Args:
        subject: tokens of P; 0 when the server is too small for any check.
        calls: in order.
        skipped: why a call is left out, by its name.
        vocabulary: token ids are smaller.
    """

    subject: int
    calls: tuple[Call, ...]
    skipped: Mapping[str, str]
    vocabulary: int


def room_of(info: Mapping[str, Any], model: Mapping[str, Any]) -> Room:
    """From SGLang's ``server_info`` and the model's ``config.json``; what neither tells is taken to be small."""
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    prompt = _count(info, "max_req_input_len", 512) - 1
    page = max(1, _count(info, "page_size", 1))
    chunk = _count(info, "chunked_prefill_size", -1)
    most = _count(info, "max_prefill_tokens", 1 << 30)
    running = _count(state, "effective_max_running_requests_per_dp", _count(info, "max_running_requests", 4))
    return Room(
        prompt=prompt,
        cache=_count(info, "max_total_num_tokens", prompt) * 9 // 10,
        chunk=min(chunk, most) if chunk > 0 else None,
        requests=min(running, _count(info, "prefill_max_requests", running)),
        page=page,
        vocabulary=_count(model, "vocab_size", 256),
    )


def plan(room: Room) -> Plan:
    """The requests that a server of this size can take."""
    subject = min(SUBJECT, room.prompt, room.rows // 4)
    if subject < SHORTEST:
        return Plan(0, (), {}, room.vocabulary)
    calls, skipped = [Call(ALONE), Call(AGAIN), Call(SCORED, scored=True)], {}
    for name, make in ((BATCH, _batch), (CUT, _cut)):
        made = make(room, subject)
        if isinstance(made, Call):
            calls.append(made)
        else:
            skipped[name] = made
    return Plan(subject, tuple(calls), skipped, room.vocabulary)


def scored_name(call: str) -> str:
    """What a call is named when it is sent once more, with log-probabilities."""
    return f"{call}-scored"


def prompts(call: Call, subject: int, vocabulary: int) -> list[list[int]]:
    """The token ids of a call's prompts; P is the one after ``len(call.before)`` others.

    Ids come from the lower nine tenths of the vocabulary, where no model keeps its control tokens.
    """
    chance = random.Random(f"{SEED} {call.name}")  # noqa: S311 - not for secrets
    top = max(4, vocabulary * 9 // 10)

    def some(count: int) -> list[int]:
        return [chance.randrange(3, top) for _ in range(count)]

    same = random.Random(SEED)  # noqa: S311
    p = [same.randrange(3, top) for _ in range(subject)]
    return [*(some(n) for n in call.before), p, *(some(n) for n in call.after)]


def _batch(room: Room, subject: int) -> Call | str:
    """P between others, in one pass of more than ``LARGE`` rows, or of as many as there is room for."""
    others = min(LARGE, room.rows - subject - FIRST - room.page)
    sizes = _split(others, room, besides=2)
    if sum(sizes) < subject:
        return f"no batch of more than {subject + sum(sizes):,} tokens fits: {_told(room)}"
    half = (len(sizes) + 1) // 2
    return Call(BATCH, before=(FIRST, *sizes[:half]), after=tuple(sizes[half:]))


def _cut(room: Room, subject: int) -> Call | str:
    """P behind so much that a chunk ends in its middle."""
    if room.chunk is None:
        return "chunked prefill is off: no prompt comes in pieces"
    before = room.chunk - subject // 2
    sizes = _split(before, room, besides=2)
    if sum(sizes) < before or FIRST + before + subject > room.cache:
        return f"a prefill chunk of {room.chunk:,} tokens cannot be filled: {_told(room)}"
    if subject // 2 - FIRST < room.page:
        return f"half of {subject} tokens is no whole page of {room.page}"
    return Call(CUT, before=(FIRST, *sizes))


def _split(total: int, room: Room, *, besides: int) -> Sequence[int]:
    """``total`` tokens as prompts of at most ``room.prompt``, as many as run beside ``besides`` others."""
    count = min(max(1, -(-total // room.prompt)), max(0, room.requests - besides))
    most = min(max(0, total), count * room.prompt)
    return [size for i in range(count) if (size := most // count + (i < most % count))]


def _told(room: Room) -> str:
    return f"the server takes prompts of {room.prompt:,} tokens, {room.requests:,} at once, {room.cache:,} together" + (
        f", {room.chunk:,} a pass" if room.chunk else ""
    )


def _count(source: Mapping[str, Any], key: str, otherwise: int) -> int:
    value = source.get(key)
    return value if type(value) is int else otherwise
