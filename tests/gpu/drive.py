"""Prompts through a running server, in passes that are timed."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 129280
CONCURRENCY = 64


@dataclass(frozen=True)
class Pass:
    """What one pass took.

    Args:
        mode: how its prompts were captured.
        tokens: of all prompts; captured: of those that were captured.
        http_s: first request to last answer; done_s: to the last manifest line.
        ok, failed: samples by their manifest lines.
        reasons: of the failed.
    """

    mode: str
    tokens: int
    captured: int
    http_s: float
    done_s: float
    ok: int
    failed: int
    reasons: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Tokens a second by the answers."""
        return self.tokens / self.http_s

    def told(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "tokens_per_s": round(self.rate)}


def prompts(count: int, low: int, high: int, seed: int, vocabulary: int = VOCABULARY) -> list[list[int]]:
    """``count`` prompts of ``low`` to ``high`` random tokens."""
    chance = random.Random(seed)
    return [[chance.randrange(2, vocabulary) for _ in range(chance.randint(low, high))] for _ in range(count)]


def run(port: int, folder: Path, mode: str, asked: Sequence[list[int]], name: Callable[[int], str]) -> Pass:
    """All of ``asked`` at once, then the manifest lines of those whose id ``name(i)`` starts with ``hs-``."""
    names = [name(i) for i in range(len(asked))]
    bodies = [_body(ids, rid) for ids, rid in zip(asked, names, strict=True)]
    captured = {rid[3:]: len(ids) for ids, rid in zip(asked, names, strict=True) if rid.startswith("hs-")}
    began = time.perf_counter()
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        list(pool.map(lambda body: _post(port, body), bodies))
    answered = time.perf_counter() - began
    lines = _lines(folder / "manifest.jsonl", set(captured), deadline=time.perf_counter() + 60)
    done = time.perf_counter() - began
    ok = [line for line in lines if line["status"] == "ok"]
    reasons = tuple(sorted({line["reason"] for line in lines if line["status"] != "ok"}))
    return Pass(
        mode, sum(map(len, asked)), sum(captured.values()), answered, done, len(ok), len(captured) - len(ok), reasons
    )


def post(port: int, body: dict[str, Any]) -> None:
    """One request to /generate; its answer does not matter."""
    _post(port, json.dumps(body).encode())


def _body(ids: list[int], rid: str) -> bytes:
    sampling = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
    return json.dumps({"input_ids": ids, "rid": rid, "sampling_params": sampling}).encode()


def _post(port: int, body: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    try:
        connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {text[:300]!r}")
    finally:
        connection.close()


def _lines(manifest: Path, wanted: set[str], deadline: float) -> list[dict[str, Any]]:
    while wanted:
        text = manifest.read_text() if manifest.exists() else ""
        found = {line["id"]: line for line in map(json.loads, text.splitlines())}
        if wanted <= set(found):
            return [found[name] for name in wanted]
        if time.perf_counter() > deadline:
            return [found[name] for name in wanted & set(found)]
        time.sleep(0.01)
    return []
