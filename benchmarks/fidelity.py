"""A thousand prompts through real servers on the lab, every row held against Hugging Face transformers.

    python -m benchmarks.fidelity [--prompts 1000] [--sglang 0.5.9 0.5.23] [--overlap off on] [--naive 0.5.9] [--out F]

TP 2, float32, prompts of 1 to 480 random tokens, 32 at once, prefill in chunks of 64, the overlap schedule off and on.
Beside it what a plain ``hidden_states + residual`` in the layers' loop gives where the all-reduce is left to the next
layer. Writes docs/reference/fidelity.json and .md, after each run.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hsops.lab.shims import version
from tests.e2e.practice import MINUTES, Practice, practice
from tests.fidelity import naive, prompts
from tests.fidelity.round import BOUNDARIES, FINAL, ranks_equal
from tests.fidelity.tally import Tally, tally
from tests.fidelity.truth import TIE, Truth, of_the_tiny_model

DOCS = Path(__file__).parent.parent / "docs/reference"
LONGEST, CONCURRENCY, CHUNK, SEED = 480, 32, 64, 11
DEFERRED = "deferred-allreduce"


@dataclass(frozen=True, slots=True)
class Run:
    """One server's run.

    Args:
        sglang, overlap: the server.
        capture: ``ours``, or the naive one's kind and what was imitated.
        prompts, missing: asked for, and those without a dump.
        ranks_equal: both ranks wrote the same bytes.
        seconds: of the extraction.
        tally: the comparison.
    """

    sglang: str
    overlap: bool
    capture: str
    prompts: int
    missing: int
    ranks_equal: bool
    seconds: float
    tally: Tally


def main(words: Sequence[str] = ()) -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--sglang", nargs="+", default=["0.5.9", "0.5.23"])
    parser.add_argument("--overlap", nargs="+", choices=["on", "off"], default=["off", "on"])
    parser.add_argument("--naive", nargs="*", default=["0.5.9"])
    parser.add_argument("--out", type=Path, default=DOCS / "fidelity.json")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="hsops-fidelity-") as name:
        folder, wanted = Path(name), chosen(asked.prompts)
        began = time.monotonic()
        truth = of_the_tiny_model(wanted, folder)
        rows, seconds = sum(map(len, wanted.values())), time.monotonic() - began
        print(f"{len(wanted)} prompts, {rows:,} rows; reference {seconds:.0f} s", flush=True)
        for sglang in asked.sglang:
            with practice(folder, sglang=sglang, tp=2) as lab:
                for overlap in asked.overlap:
                    record(asked.out, run(lab, sglang, overlap == "on", wanted, truth, folder))
        for sglang in asked.naive:
            with practice(folder, sglang=sglang, tp=2) as lab:
                naive.install(lab.site)
                kinds = ",".join([naive.PLAIN_ADD] * len(BOUNDARIES))
                env = {"HSOPS_LAB_IMITATE": DEFERRED, naive.VARIABLE: kinds}
                record(asked.out, run(lab, sglang, True, wanted, truth, folder, **env))


def record(path: Path, made: Run) -> None:
    """Put a run in the place of the one before on the same server, and renew the page."""
    held = json.loads(path.read_text()) if path.exists() else []
    runs = [one for one in held if order(one) != order(asdict(made))] + [asdict(made)]
    runs.sort(key=order)
    path.write_text(json.dumps(runs, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(runs))


def order(one: dict[str, Any]) -> tuple[bool, tuple[int, ...], bool]:
    """Ours first, by release, the overlap schedule off first."""
    return one["capture"] != "ours", version(one["sglang"]), one["overlap"]


def chosen(count: int) -> dict[str, list[int]]:
    """Prompts of every length alike."""
    dice = random.Random(SEED)
    return {f"p{i}": prompts.tokens(dice, dice.randint(1, LONGEST)) for i in range(count)}


def run(
    lab: Practice, sglang: str, overlap: bool, wanted: prompts.Prompts, truth: Truth, folder: Path, **env: str
) -> Run:
    """Deploy, launch, extract, fetch, compare; the server is stopped afterwards."""
    series = f"{'naive' if env else 'ours'}-{sglang}-{'overlap' if overlap else 'plain'}"
    args = {
        "chunked-prefill-size": CHUNK,
        "sleep-on-idle": True,
        "disable-overlap-schedule": not overlap,
        "max-running-requests": CONCURRENCY,
        "max-total-tokens": CONCURRENCY * 512,
    }
    lab.change("servers", "tiny", args=args, env={"SGLANG_HS_CHECK_RANKS": "1", **env})
    lab.change("patches", "hs-dump", boundaries=list(BOUNDARIES), final=FINAL)
    lab.do("deploy", "--yes")
    lab.do("launch", "--replace", "--wait-healthy", timeout=10 * MINUTES)
    asked = prompts.write(folder / f"{series}.jsonl", wanted, series)
    began = time.monotonic()
    done = lab.run("extract", str(asked), "--concurrency", str(CONCURRENCY), timeout=60 * MINUTES)
    if done.returncode not in (0, 3):  # 3: some prompts have no dump; they are counted as missing
        raise SystemExit(done.stderr[-2000:])
    seconds = time.monotonic() - began
    to = folder / series
    lab.do("fetch", "--to", str(to), timeout=20 * MINUTES)
    lab.do("stop")
    found, equal = tally(to, truth, BOUNDARIES), ranks_equal(lab, to)
    shutil.rmtree(lab.dumps)  # or the next run on this lab would be fetched with it
    made = Run(
        sglang=sglang,
        overlap=overlap,
        capture="plain-add under " + DEFERRED if env else "ours",
        prompts=len(wanted),
        missing=len(wanted) - found.samples,
        ranks_equal=equal,
        seconds=round(seconds, 1),
        tally=found,
    )
    print(line(asdict(made)), flush=True)
    return made


HEAD = """\
# Prompts by the hundred, row by row

Written by `python -m benchmarks fidelity`; do not edit. The lab at TP 2 in float32, prompts of 1 to 480 random tokens,
32 at once, prefill in chunks of 64, against Hugging Face transformers' DeepSeek-V3 with
the same weights. A row is wrong when |dump - reference| is more than 1e-4 of |reference|. *wrong rows* at the
boundaries 1, 3, 5 and at the final state before and after the norm; then the largest error of a whole sample and of a
row that is not wrong.

| SGLang | overlap schedule | capture | prompts | rows | missing | wrong rows | of a sample | of a row | ranks |
|---|---|---|---|---|---|---|---|---|---|
"""
TIES = """
Not counted above: rows after a token for which the reference's router chose between experts (or groups of them) by less
than {tie:.0e}. Rounding decides such a choice, so two right programs may go apart there. That happened in {samples} of
the prompts of a run at most, {rows:,} rows.
"""
NAIVE = """
The last line is `hidden_states + residual` taken in the layers' loop, where the all-reduce is left to the next layer's
fused kernel, as SGLang does by default for these models on one Hopper or Blackwell node (imitated here). The final
state is right, and no error is raised anywhere.
"""


def page(runs: list[dict[str, Any]]) -> str:
    """docs/reference/fidelity.md."""
    ties = [one["tally"]["ties"] for one in runs]
    told = TIES.format(tie=TIE, samples=max(map(len, ties)), rows=max(sum(held.values()) for held in ties))
    wrong = NAIVE if any(one["capture"] != "ours" for one in runs) else ""
    return HEAD + "\n".join(line(one) for one in runs) + "\n" + (told if any(ties) else "") + wrong


def line(one: dict[str, Any]) -> str:
    """A row of the table."""
    seen = one["tally"]
    wrong = ", ".join(
        f"{count:,}" + (f" ({count / seen['rows']:.0%})" if count else "") for count in seen["wrong"].values()
    )
    cells = [
        one["sglang"],
        "on" if one["overlap"] else "off",
        one["capture"],
        f"{one['prompts']:,}",
        f"{seen['rows']:,}",
        str(one["missing"]),
        wrong,
        f"{max(seen['errors'].values()):.1e}",
        f"{max(seen['row_errors'].values()):.1e}",
        "equal" if one["ranks_equal"] else "**differ**",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main(sys.argv[1:])
