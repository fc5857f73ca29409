"""Where a log leaves the way of good runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hsops.core.baseline import parse_baseline
from hsops.core.divergence import MISSING, NEW, STOPS, Divergence, divergences
from hsops.core.log_summary import LogSummary
from hsops.core.milestones import summarize

HEALTHY = (Path(__file__).parent.parent / "cases" / "logs" / "healthy-0.5.23-tp2.log").read_bytes()
DIED = (Path(__file__).parent.parent / "cases" / "logs" / "peer-closed-0.5.9-tp2.log").read_bytes()


def good(data: bytes = HEALTHY) -> dict[str, dict[str, int]]:
    """What a baseline keeps of a good log."""
    summary = summarize(data)
    return {
        rank: {kind: line for kind, (line, _) in kinds.items() if line <= summary.ready_line}
        for rank, kinds in summary.kinds.items()
    }


def found(data: bytes, *others: bytes) -> dict[str, Divergence]:
    """Rank -> its first difference from the healthy log and ``others``."""
    summary = summarize(data)
    told = divergences(summary.kinds, [good(), *map(good, others)], until=summary.ready_line)
    return {one.rank: one for one in told}


def without(pattern: bytes) -> bytes:
    """The healthy log without lines."""
    kept = [line for line in HEALTHY.splitlines(keepends=True) if not re.search(pattern, line)]
    assert len(kept) < len(HEALTHY.splitlines())
    return b"".join(kept)


def line_of(summary: LogSummary, rank: str, words: str) -> int:
    """Where a rank first says ``words``."""
    return next(line for line, text in summary.kinds[rank].values() if words in text)


def test_a_good_run_is_like_itself() -> None:
    """With other figures, other times and lines of probes and requests after its start."""
    later = re.sub(rb"avail mem=[\d.]+", b"avail mem=1.25", HEALTHY.replace(b"2026-11-29 17", b"2027-01-30 08"))
    served = later + b"[2027-01-30 09:00:00 TP0] Some line of a request that no start has\n"

    assert found(HEALTHY) == {} and later != HEALTHY
    assert found(served) == {}


def test_a_log_that_stops_names_the_line_that_is_due() -> None:
    """The story that hsops began with: the weights are there, then silence."""
    cut = HEALTHY[: HEALTHY.index(b"[2026-11-29 17:40:47 TP1] KV Cache")]

    told = found(cut)

    assert told["TP1"].what == STOPS and told["TP1"].text.startswith("KV Cache is allocated")
    assert told["TP1"].after.startswith("Load weight end")
    assert told["TP1"].line == line_of(summarize(cut), "TP1", "Load weight end")
    assert told["TP1"].good_line == line_of(summarize(HEALTHY), "TP1", "KV Cache is allocated")


def test_a_line_that_one_rank_leaves_out() -> None:
    """It goes on with the others' lines; only that rank is named."""
    told = found(without(rb" TP1\] Load weight end"))

    assert set(told) == {"TP1"} and told["TP1"].what == MISSING
    assert told["TP1"].text.startswith("Load weight end") and told["TP1"].after.startswith("Load weight begin")


def test_a_line_that_no_good_run_has() -> None:
    """The first of two, with its own text, and what came before it."""
    lines = [line + b"\n" for line in HEALTHY.split(b"\n")]  # a bar's redraws are one line
    at = next(i for i, line in enumerate(lines) if b" TP1] Load weight end" in line)
    stamp = lines[at][: lines[at].index(b"]") + 1]
    odd = [*lines[:at], stamp + b" P2P is broken between 1 and 3\n", stamp + b" so is all else\n", *lines[at:]]

    told = found(b"".join(odd))

    assert set(told) == {"TP1"}
    assert (told["TP1"].what, told["TP1"].line, told["TP1"].text) == (NEW, at + 1, "P2P is broken between 1 and 3")
    assert told["TP1"].after.startswith("Load weight begin")


def test_what_only_some_good_runs_said_may_be_there_or_not() -> None:
    """A warning that comes and goes is no difference."""
    shorter = without(rb" TP1\] Load weight end")

    assert found(HEALTHY, shorter) == {} and found(shorter, shorter) == {}


def test_a_rank_that_never_spoke() -> None:
    """It is named with the first line that is due of it."""
    told = found(without(rb" TP1\]"))

    assert set(told) == {"TP1"} and told["TP1"].what == STOPS
    assert (told["TP1"].line, told["TP1"].after) == (0, "")


def test_a_death_is_a_new_line() -> None:
    """A real log: TP0's first words about it, against the same log before it."""
    healthy = b"".join(_until_death(DIED))
    summary = summarize(DIED)

    told = {one.rank: one for one in divergences(summary.kinds, [_kinds(healthy)])}

    assert told["TP0"].what == NEW and told["TP0"].line > healthy.count(b"\n") // 2


def test_a_difference_names_no_key() -> None:
    """Neither of this run nor of good ones; and another key is no difference."""
    lines = [b"[2026-11-30 10:00:00 TP0] args api_key=sk-%s, x", b"[2026-11-30 10:00:00 TP0] Bearer sk-%s is due"]
    key = b"alpha"
    mine = summarize(lines[0] % key + b"\n[2026-11-30 10:00:00 TP0] new: --api-key sk-beta\n")
    (good_run,) = parse_baseline(_file(b"".join(line % b"gamma" + b"\n" for line in lines))).runs

    (new,) = divergences(mine.kinds, [good_run.kinds])
    (due,) = divergences(summarize(lines[0] % key + b"\n").kinds, [good_run.kinds])

    assert (new.what, new.text, new.after) == (NEW, "new: --api-key ***", "args api_key=***, x")
    assert (due.what, due.text, due.after) == (STOPS, "Bearer *** is due", "args api_key=***, x")


def _file(log: bytes) -> dict[str, Any]:
    """A baseline as an hsops before this one has kept it: with keys."""
    kinds = {rank: [[i, line] for i, line in enumerate(found.values())] for rank, found in _kinds(log).items()}
    texts = [text for found in _kinds(log).values() for text in found]
    run = {"run": "r", "spec_hash": "s", "sglang": "", "recorded": 0.0, "steps": {}, "lines": 2, "seconds": 1.0}
    assert any("gamma" in text for text in texts)
    return {"server": "tiny", "runs": [{**run, "kinds": kinds}], "texts": texts}


def _until_death(data: bytes) -> Iterator[bytes]:
    for line in data.splitlines(keepends=True):
        if b"hit an exception" in line or b"sigquit" in line or b"Traceback" in line:
            return
        yield line


def _kinds(data: bytes) -> dict[str, dict[str, int]]:
    return {rank: {kind: at for kind, (at, _) in kinds.items()} for rank, kinds in summarize(data).kinds.items()}
