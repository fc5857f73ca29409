"""NCCL's own view of its ranks, as its RAS threads tell it on a port. Unknown words are passed over.

A rank is numbered within its communicator, of which a server has several: one whose process is known is called as that
is. The lines are those that NCCL 2.24 to 2.30 print (src/ras/client_support.cc).

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
_COUNTED = re.compile(r"(\d+ ranks?|Rank \d+) ha(?:ve|s) (?:launched up to operation (\d+)|not launched any operation)")
_RANK = re.compile(r"\bRank (?P<rank>\d+)\b(?:.*\bprocess (?P<pid>\d+))?")
_PROCESS = re.compile(r" +Process (?P<pid>\d+) on node")
_SECTIONS = (  # words of its first line, and what its ranks or processes are
    ("have different", "counted"),
    ("Missing communicator data from", "missing"),
    ("considered dead", "missing"),
)
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


def parse(text: str, ranks: Mapping[int, int] | None = None) -> Ras | None:
    """The answer to ``verbose status``, as text or JSON; None when it is neither.

    Args:
        ranks: pid -> the rank that it is of the server; others keep the number that they have in their communicator.
    """
    start = text.find("{")
    if start >= 0 and '"' in text[start : start + 200]:
        value = _tolerant(text[start:])
        if isinstance(value, dict):
            return _of_json(value, ranks or {})
    return _of_text(text, ranks or {}) if "NCCL version" in text or "Job summary" in text else None


def _of_text(text: str, ranks: Mapping[int, int]) -> Ras:
    version, section = _VERSION.search(text), ""
    missing: list[int] = []
    dead = [int(found["pid"]) for found in _DEAD.finditer(text)]
    lists: list[list[_Group]] = [[]]  # of each collective of each communicator that its ranks have not launched alike
    for line in text.splitlines():
        opened = next((what for words, what in _SECTIONS if words in line), None)
        if opened or line.startswith("#"):
            section = opened or ""
            lists.append([])
        if counted := _COUNTED.search(line):
            number = 1 if counted[1].startswith("Rank") else int(counted[1].split()[0])
            lists[-1].append(_Group(int(counted[2] or 0), number))
        if found := _RANK.search(line):
            rank = ranks.get(int(found["pid"] or 0), int(found["rank"]))
            if section == "missing":
                missing.append(rank)
            elif lists[-1]:
                lists[-1][-1].ranks.append(rank)
        elif section == "missing" and (found := _PROCESS.match(line)):
            dead.append(int(found["pid"]))
        elif (found := _MISSING.search(line)) and found["ranks"].strip():
            missing += [int(word) for word in re.findall(r"\d+", found["ranks"])]
    behind, ahead = _odd(lists)
    return Ras(
        version=version[1].rstrip(".") if version else "",
        behind=behind,
        ahead=ahead,
        missing=tuple(dict.fromkeys(missing)),
        dead=tuple(dict.fromkeys(dead)),
        warned=tuple(sorted(set(re.findall(r"\b(MISMATCH|INCOMPLETE|NOCOMM|ABORT)\b", text)))),
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """Ranks of a communicator that have launched equally many of a collective; ``ranks``: those that it names."""

    at: int
    number: int
    ranks: list[int] = field(default_factory=list)


def _odd(lists: list[list[_Group]]) -> tuple[dict[int, int], int | None]:
    """Who is not where most are, and where those are in the largest communicator; of two halves it is the further."""
    behind: dict[int, int] = {}
    ahead = None
    for groups in lists:
        if groups:
            most = max(groups, key=lambda group: (group.number, group.at)).at
            ahead = most if ahead is None else ahead
            for group in groups:
                if group.at != most:
                    behind = dict.fromkeys(group.ranks, group.at) | behind
    return behind, ahead


def _of_json(value: Mapping[str, Any], named: Mapping[int, int]) -> Ras:
    behind: dict[int, int] = {}
    missing: list[int] = []
    ahead, states = None, set[str]()
    for comm in _list(value, "communicators"):
        ranks = {_rank(r, named): _launched(r) for r in _list(comm, "ranks") if isinstance(r.get("rank"), int)}
        states |= {str(r["status"]) for r in _list(comm, "ranks") if r.get("status") in ("NOCOMM", "ABORT")}
        missing += [_rank(r, named) for r in _list(comm, "missing_ranks") if isinstance(r.get("rank"), int)]
        if ranks:
            counts = Counter(ranks.values())
            most = max(counts, key=lambda count: (counts[count], count))
            ahead = most if ahead is None else ahead
            behind |= {rank: count for rank, count in ranks.items() if count != most}
    warned = states | ({"MISMATCH"} if behind else set()) | ({"INCOMPLETE"} if missing else set())
    return Ras(str(value.get("nccl_version", "")), behind, ahead, tuple(missing), (), tuple(sorted(warned)))


def _rank(entry: Mapping[str, Any], named: Mapping[int, int]) -> int:
    pid = entry.get("pid")
    return named.get(pid if isinstance(pid, int) else 0, int(entry["rank"]))


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
