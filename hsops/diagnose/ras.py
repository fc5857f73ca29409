"""NCCL's own view of its ranks, as its RAS threads tell it on port 28028. Unknown words are passed over.

It counts collectives that are launched one by one. Those in CUDA graphs, which decoding runs in, and those of custom
all-reduce are not counted: equal counts are no proof of health, and counts that stand still none of a hang.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BLIND_SPOT = "NCCL does not count collectives in CUDA graphs, nor those of custom all-reduce"
_VERSION = re.compile(r"NCCL version (\d[\d.]*)")
_UP_TO = re.compile(r"(?P<n>\d+) ranks? ha(?:ve|s) launched up to operation (?P<op>\d+)")
_NO_OP = re.compile(r"(?P<n>\d+) ranks? ha(?:ve|s) not launched any operation")
_RANK = re.compile(r"\bRank (?P<rank>\d+)\b.*\bprocess (?P<pid>\d+)")
_MISSING = re.compile(r"(?i)missing ranks?: *(?P<ranks>[\d, -]*)")
_COMMAS = re.compile(r"(\}|[\]\"\d](?=\s))(\s*)(?=[{\[\"])")
_DEAD = re.compile(r"(?i)\b(dead|unresponsive|unreachable|lost connection)\b.*?process (?P<pid>\d+)")


@dataclass(frozen=True, slots=True)
class Ras:
    """What NCCL says.

    Args:
        version: of NCCL; empty when it does not say.
        behind: rank -> the last operation it has launched, of ranks that are not where most are.
        ahead: the operation most ranks are at; None when it does not say.
        missing: ranks of which NCCL has no data: dead, or not answering.
        dead: pids it calls dead or unreachable.
        warned: words such as MISMATCH and INCOMPLETE.
    """

    version: str = ""
    behind: Mapping[int, int] = field(default_factory=dict)
    ahead: int | None = None
    missing: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    warned: tuple[str, ...] = ()


def parse(text: str) -> Ras | None:
    """The answer to ``verbose status``, as text or JSON; None when it is neither."""
    start = text.find("{")
    if start >= 0 and '"' in text[start : start + 200]:
        value = _tolerant(text[start:])
        if isinstance(value, dict):
            return _of_json(value)
    return _of_text(text) if "NCCL version" in text or "Job summary" in text else None


def _of_text(text: str) -> Ras:
    version, at, ahead = _VERSION.search(text), 0, None
    behind: dict[int, int] = {}
    missing: list[int] = []
    counts: Counter[int] = Counter()
    for line in text.splitlines():
        if line.startswith("#"):
            at, counts = 0, Counter()
        if found := _UP_TO.search(line) or _NO_OP.search(line):
            at = int(found.groupdict().get("op") or 0)
            counts[at] += int(found["n"])
            ahead = counts.most_common(1)[0][0]
        elif (found := _MISSING.search(line)) and found["ranks"].strip():
            missing += [int(word) for word in re.findall(r"\d+", found["ranks"])]
        elif (found := _RANK.search(line)) and counts and at != ahead:
            behind[int(found["rank"])] = at
    return Ras(
        version=version[1].rstrip(".") if version else "",
        behind=behind,
        ahead=ahead,
        missing=tuple(dict.fromkeys(missing)),
        dead=tuple(int(found["pid"]) for found in _DEAD.finditer(text)),
        warned=tuple(sorted(set(re.findall(r"\b(MISMATCH|INCOMPLETE|NOCOMM|ABORT)\b", text)))),
    )


def _of_json(value: Mapping[str, Any]) -> Ras:
    behind: dict[int, int] = {}
    missing: list[int] = []
    ahead, states = None, set[str]()
    for comm in _list(value, "communicators"):
        ranks = {r["rank"]: _launched(r) for r in _list(comm, "ranks") if isinstance(r.get("rank"), int)}
        states |= {str(r["status"]) for r in _list(comm, "ranks") if r.get("status") in ("NOCOMM", "ABORT")}
        missing += [r["rank"] for r in _list(comm, "missing_ranks") if isinstance(r.get("rank"), int)]
        if ranks:
            most = Counter(ranks.values()).most_common(1)[0][0]
            ahead = most if ahead is None else ahead
            behind |= {rank: count for rank, count in ranks.items() if count != most}
    warned = states | ({"MISMATCH"} if behind else set()) | ({"INCOMPLETE"} if missing else set())
    return Ras(str(value.get("nccl_version", "")), behind, ahead, tuple(missing), (), tuple(sorted(warned)))


def _launched(rank: Mapping[str, Any]) -> int:
    counts = rank.get("collective_counts") or rank.get("coll_counts") or {}
    return sum(int(n) for n in counts.values()) if isinstance(counts, dict) else int(rank.get("operations", 0))


def _list(value: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = value.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _tolerant(text: str) -> Any:
    """JSON, also as NCCL 2.28.9 writes it: without commas between the entries of ``missing_ranks``, or cut short."""
    decoder = json.JSONDecoder()
    with contextlib.suppress(ValueError):
        return decoder.raw_decode(text)[0]
    with contextlib.suppress(ValueError):
        return decoder.raw_decode(_COMMAS.sub(_comma, text))[0]
    return None


def _comma(found: re.Match[str]) -> str:
    return f"{found[1]},{found[2]}"
