"""docs/reference/matrix.json and the page made of it: what the last run on each release gave."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from hsops.lab.shims import version
from tests.fidelity.round import Naive, Round, faults
from tests.measured import DOCS, Measured

RUNS = DOCS / "models-run.csv"  # what the table of models marks as run
COLUMNS = ["sglang", "architecture", "tp", "method", "largest_relative_error"]
MODELS = {
    "plain": ("DeepseekV3ForCausalLM", 2, "source"),
    "TP 1": ("DeepseekV3ForCausalLM", 1, "source"),
    "method: hook": ("DeepseekV3ForCausalLM", 2, "hook"),
    "Kimi-K2.5": ("KimiK25ForConditionalGeneration", 2, "source"),
}
COMMAND = "make matrix"

HEAD = f"""\
# Every release of SGLang against the reference

Written by `{COMMAND}`; do not edit. The lab, TP 2, float32: `hsops deploy` over SSH, launch, 12 prompts of 1 to 120
tokens each alone and in a batch, prefill in chunks of 48, fetch, then every dump against Hugging Face transformers'
DeepSeek-V3 with the same weights. The figures are the largest relative error of a sample, |dump - reference| over
|reference|; the limit is 1e-5. *off by one* is the smallest such error against a state one layer off: how well a wrong
boundary is told. *ranks*: both ranks wrote the same bytes. *revert*: afterwards the tree of sglang is the one before,
to the byte.
"""
NAIVE_HEAD = """
## What naive captures give there

`plain-add` is `hidden_states + residual` in the layers' loop, where the all-reduce is left to the next layer's fused
kernel (the default for these models on one Hopper or Blackwell node). `no-clone` keeps a reference to the right tensor
until the pass is over, where norms work in place. Both faults of a GPU are imitated on the CPU (`HSOPS_LAB_IMITATE`).
Rank 0's dumps, which are the ones a user gets. The final state is right in all: a check of it alone sees nothing.
"""


def record(section: str, sglang: str, seen: Round | Naive | str) -> None:
    """Put a result in its place and renew the page. A text is why the round came to no end."""
    with MEASURED.change() as data:
        entry = {"failed": seen} if isinstance(seen, str) else asdict(seen)
        results = {**data.pop(section, {}), sglang: entry}
        sections = {**data, section: dict(sorted(results.items(), key=lambda item: version(item[0])))}
        data.clear()
        data.update(sorted(sections.items(), key=lambda item: (item[0] != "plain", item[0])))
        write_runs(data)


def write_runs(data: Mapping[str, Mapping[str, Any]]) -> None:
    """Rounds that were as promised, beside what others have noted in that file."""
    ours = {architecture for architecture, *_ in MODELS.values()}
    with RUNS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["architecture"] not in ours]
    for section, (architecture, tp, method) in MODELS.items():
        for sglang, seen in data.get(section, {}).items():
            if "failed" not in seen and not faults(Round(**seen)):
                error = f"{max(seen['errors'].values()):.1e}"
                rows.append(dict(zip(COLUMNS, (sglang, architecture, str(tp), method, error), strict=True)))
    save_runs(rows)


def note_run(*values: str) -> None:
    """One more round, of a model that is no section of the matrix; values as in ``COLUMNS``."""
    with MEASURED.alone():
        with RUNS.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if (row["sglang"], row["architecture"]) != values[:2]]
        save_runs([*rows, dict(zip(COLUMNS, values, strict=True))])


def save_runs(rows: list[dict[str, str]]) -> None:
    """Write the file, in its order."""
    with RUNS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (row["architecture"], version(row["sglang"]), row["tp"])))


def page(data: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole page."""
    return "\n".join([HEAD, *_rounds(data), *_naive(data)]) + "\n"


def _rounds(data: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "| SGLang | strategy | 1 | 3 | 5 | final | post-norm | off by one | ranks | tokens | revert | launch |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for section, results in data.items():
        for sglang, seen in results.items():
            if not section.startswith("naive"):
                yield _round(sglang, "" if section == "plain" else f" {section}", seen)


def _round(sglang: str, more: str, seen: Mapping[str, Any]) -> str:
    if "failed" in seen:
        return f"| {sglang}{more} | **failed**: {seen['failed']} |" + " |" * 10
    errors = [
        f"{seen['errors'][name]:.1e}" if name in seen["errors"] else "" for name in ("1", "3", "5", "final", "post")
    ]
    told = [_word(seen[key]) for key in ("ranks_equal", "tokens_equal", "reverted")]
    cells = [
        f"{sglang}{more}",
        seen["strategy"],
        *errors,
        f"{seen['off_by_one']:.2f}",
        *told,
        f"{seen['launch_s']:.0f} s",
    ]
    return f"| {' | '.join(cells)} |"


def _naive(data: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield NAIVE_HEAD
    yield "| SGLang | capture | 1 | 3 | 5 | final | wrong rows at 1, 3, 5 | ranks |"
    yield "|---|---|---|---|---|---|---|---|"
    for section, results in data.items():
        for sglang, seen in results.items():
            if section.startswith("naive"):
                errors = [f"{seen['errors'][name]:.1e}" for name in ("1", "3", "5", "final")]
                rows = ", ".join(f"{seen['wrong_rows'][name]:.0%}" for name in ("1", "3", "5"))
                yield f"| {sglang} | {section[6:]} | {' | '.join(errors)} | {rows} | {_word(seen['ranks_equal'])} |"


def _word(good: bool | None) -> str:
    if good is None:
        return "one rank"
    return "equal" if good else "**differ**"


MEASURED = Measured("matrix", page)
