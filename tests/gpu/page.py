"""docs/reference/gpu.json and the page made of it, from what the runs on a GPU machine have written.

python -m tests.gpu.page [--to FOLDER] RESULT.json...     story.json, headline.json, hangs.json: of one kind the last
                                                          wins, of hangs each state's last
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs/reference"
Row = Mapping[str, Any]

HEAD = """\
# The whole story on a GPU

Written by `python -m tests.gpu.page`; do not edit. `make gpu-bundle` builds what such a machine needs, `make gpu` there
runs it: `tests/gpu/story.py`, `headline.py`, `hangs.py`. DeepSeek-V3-shaped models with random weights; everything
through hsops' own command line. What capture costs, at length: [capture-cost](../explanation/capture-cost.md).
"""

AFTER = """\
*after* is the time from when the state was there until the verdict, *took* the last look's, in seconds. On the way up a
log must have been silent for 60 s (20 s beside a good run), a batch that a server serves for 20 s. *ranks* is how
many on how many cards: alone, a rank has no peer; two on one card talk over sockets, since NCCL is told that they are
on different hosts (`tests/gpu/one_card.py`)."""


def main(words: list[str]) -> int:
    """Take the results in, write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=Path, default=FOLDER)
    parser.add_argument("results", nargs="*", type=Path)
    asked = parser.parse_args(words)
    data_file = asked.to / "gpu.json"
    data: dict[str, Any] = json.loads(data_file.read_text()) if data_file.exists() else {}
    for path in asked.results:
        found = json.loads(path.read_text())
        if found["machine"]["rehearsal"] and asked.to == FOLDER:
            sys.exit(f"{path} is of a rehearsal without a GPU: --to another folder")
        take(data, found)
    data_file.write_text(json.dumps(data, indent=1) + "\n")
    (asked.to / "gpu.md").write_text(page(data))
    return 0


def take(data: dict[str, Any], found: Row) -> None:
    """One result into what is known."""
    if found["kind"] != "hangs":
        data[found["kind"]] = found
        return
    hangs = data.setdefault("hangs", {"machine": {}, "states": {}, "well": {}, "took_s": {}})
    when = found["machine"]["when"]
    hangs["machine"], hangs["took_s"][when] = found["machine"], found["took_s"]
    for server, told in found["servers"].items():
        looks = [one for one in told if one.get("wanted") == "well"]
        if looks:
            hangs["well"][server] = [{**_short(one), "when": when} for one in looks]
        for one in told:
            if one.get("wanted") not in (None, "well"):
                hangs["states"][one["case"]] = {**_short(one), "when": when}
        if told and told[0]["case"] == "launch" and (up := [one for one in told if one["case"] == "healthy"]):
            hangs["healthy_s"] = up[0]["after_s"]


def _short(one: Row) -> dict[str, Any]:
    keys = ("case", "ranks", "right", "wanted", "after_s", "looks", "class", "rank", "confidence", "summary", "took_s")
    return {key: one[key] for key in keys if key in one}


def page(data: Row) -> str:
    """The page."""
    parts = [HEAD]
    if story := data.get("story"):
        parts += ["## Step by step", origin(story), *_steps(story), *_keeping_up(story)]
    if headline := data.get("headline"):
        parts += ["## Ten thousand samples, drained while they are made", origin(headline), *_steps(headline)]
    if hangs := data.get("hangs"):
        parts += ["## Hangs and deaths, and what `hsops diagnose` says", origin(hangs), *_hangs(hangs)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def origin(found: Row) -> str:
    """Where and when it was seen."""
    at = found["machine"]
    took = found["took_s"]
    seconds = sum(took.values()) if isinstance(took, dict) else took
    return (
        f"{at['gpu']} MiB, {at['cores']} cores, Linux {at['kernel']}, SGLang {at['sglang']}, {at['when']}; "
        f"{seconds:.0f} s of that machine, without its start."
    )


def _steps(found: Row) -> Iterator[str]:
    rows = ["| step | seconds | right | |", "|---|---|---|---|"]
    for row in found["steps"]:
        said = row.get("not_begun") or row.get("problem") or "; ".join(_figures(row))
        right = "not begun" if "not_begun" in row else "yes" if row["ok"] else "**no**"
        rows.append(f"| {row['step']} | {row['s']:.1f} | {right} | {_cell(said)} |")
    yield "\n".join(rows)
    reached = next((row["milestones"] for row in found["steps"] if row.get("milestones")), {})
    if reached:
        words = ", ".join(f"{name} {_n(seconds, 1)}" for name, seconds in reached.items())
        yield f"Milestones of the launch, in seconds: {words}."


def _figures(row: Row) -> Iterator[str]:
    try:
        yield from list(FIGURES.get(row["step"], lambda _row: iter(()))(row))
    except (KeyError, TypeError, ValueError, AttributeError):  # of a step that did not come so far
        yield "not all of its figures are there"
    failed = [one for one in row.get("commands", ()) if one["exit"]]
    yield from (f"`{one['command'].split(' --')[0]}`: exit {one['exit']}" for one in failed)


def _prepare(row: Row) -> Iterator[str]:
    yield f"the way: {row['way']}"
    yield f"{row['samples']:,} prompts, {row['tokens']:,} tokens"
    if "hidden" in row:
        yield f"hidden size {row['hidden']}, a RAM disk of {row['share'] / 2**30:.3g} GiB"


def _doctor(row: Row) -> Iterator[str]:
    yield ", ".join(f"{row['levels'].count(level)} of level {level}" for level in sorted(set(row["levels"])))


def _launch(row: Row) -> Iterator[str]:
    yield f"healthy {_n(row['healthy_s'], 1)} s after the start"
    if "milestones" in row:
        yield f"{len(row['milestones'])} milestones, a good run recorded: {row['baselines']}"
        yield f"GPU memory {row['gpu_mib_before']} to {row['gpu_mib']} MiB"


def _graphs(row: Row) -> Iterator[str]:
    decode, prefill = row["decode_batches"], row["prefill_batches"]
    yield f"batches of decoding from a CUDA graph: {decode.get('True', 0)}, without: {decode.get('False', 0)}"
    yield f"of prefill from a graph: {prefill.get('True', 0)}; graphs captured in {_n(row['capture_s'])} s"


def _live(row: Row) -> Iterator[str]:
    yield f"{row['pass']} checks pass, {row['fail']} fail, {row['skipped']} skipped"
    yield from (f"{name} {said}" for name, said in row["checks"].items() if not said.startswith("pass"))


def _alone(row: Row) -> Iterator[str]:
    yield f"{row['samples']:,} samples, {row['tokens_per_s']:,} tokens/s, **{_n(row['GB_per_s'])} GB/s** of dumps"


def _fetch(row: Row) -> Iterator[str]:
    yield f"**{_n(row['GB_per_s'])} GB/s** over {row['channel']}, {row['streams']} streams, {row['evicted']} evicted"


def _both(row: Row) -> Iterator[str]:
    yield f"{row['samples']:,} samples, {row['tokens']:,} tokens, {row['failures']} errors"
    yield f"{row['tokens_per_s']:,} tokens/s, dumps {_n(row.get('dumped_GB_per_s'))} GB/s"
    yield f"fetched {_n(row.get('fetched_GB_per_s'))} GB/s"
    yield f"at most {row['most_behind_bytes'] / 1e9:.3g} GB behind, RAM disk {100 * row['disk_used_most']:.0f} % full"
    yield f"extract found it full {row['found_disk_full']} times"
    yield f"the last dump was here {row['fetch_after_extract_s']} s after the extract's end"


def _verify(row: Row) -> Iterator[str]:
    yield f"{row['samples']:,} dumps, {row['bytes'] / 1e9:.3g} GB, {row['compared']:,} held against their prompts"
    yield f"{row['findings']} faults, {_n(row['GB_per_s'])} GB/s"


def _prefill(row: Row) -> Iterator[str]:
    rates = row["tokens_per_s"]
    yield f"{rates['none']:,} tokens/s without capture, {rates['capture']:,} with it, {100 * row['of_plain']:.1f} %"
    yield f"by round {', '.join(f'{100 * one:.1f} %' for one in row['of_plain_by_round'])}"


def _pilot(row: Row) -> Iterator[str]:
    yield f"{row['tokens_per_s']:,} tokens/s: time for {row['fit']:,} samples"
    if row["cut"]:
        yield f"**cut to {row['count']:,} samples**"


def _stop(row: Row) -> Iterator[str]:
    if "gpu_mib_after" in row:
        yield f"GPU memory {row['gpu_mib_before_launch']} MiB before the launch, {row['gpu_mib_after']} MiB now"


FIGURES: dict[str, Callable[[Row], Iterator[str]]] = {
    "prepare": _prepare,
    "doctor": _doctor,
    "launch": _launch,
    "graphs": _graphs,
    "verify --live": _live,
    "pilot": _pilot,
    "extract alone": _alone,
    "fetch alone": _fetch,
    "extract and fetch": _both,
    "verify": _verify,
    "prefill": _prefill,
    "revert": lambda row: iter(["SGLang's files are byte for byte as before"] if row.get("same_bytes") else []),
    "stop": _stop,
}


def _keeping_up(story: Row) -> Iterator[str]:
    rates = {row["step"]: row.get("GB_per_s") for row in story["steps"]}
    dumped, fetched = rates.get("extract alone"), rates.get("fetch alone")
    if dumped and fetched:
        yield f"Fetch, with eviction, takes **{fetched / dumped:.2f}** times what extract leaves, each alone."


def _hangs(hangs: Row) -> Iterator[str]:
    states = hangs["states"].values()
    yield f"{len(states)} hangs and deaths: {sum(one['right'] for one in states)} right."
    rows = ["| state | ranks | verdict | rank | confidence | right | after | looks | took | seen |", "|" + "---|" * 10]
    for one in states:
        right = "yes" if one["right"] else f"**no**: {one['wanted']}"
        rank = "" if one["rank"] is None else f"TP{one['rank']}"
        ranks = one.get("ranks", "1 on 1")
        cells = (one["case"], ranks, f"`{one['class']}`", rank, one["confidence"], right, one["after_s"], one["looks"])
        rows.append("| " + " | ".join(map(str, (*cells, one["took_s"], one["when"][:16]))) + " |")
    yield "\n".join(rows)
    yield AFTER
    looks = [one for told in hangs["well"].values() for one in told]
    alarms = [one for one in looks if not one["right"]]
    counts: dict[str, int] = {}
    for one in looks:
        counts[f"{one['case']}: {one['class']}"] = counts.get(f"{one['case']}: {one['class']}", 0) + 1
    said = ", ".join(f"{what} ({count})" for what, count in sorted(counts.items()))
    yield f"Looks at servers that are well: {len(looks)}, of which {len(alarms)} false alarms: {said}."


def _n(value: float | None, digits: int = 2) -> str:
    return "?" if value is None else f"{value:.{digits}f}"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")[:600]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
