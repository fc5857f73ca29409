"""One round on one release: deploy, launch, capture, fetch, hold against the reference, revert."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.numpy import load_file

from tests.e2e.practice import MINUTES, Practice
from tests.fidelity import naive, prompts
from tests.fidelity.truth import LIMIT, Truth, hold, largest, smallest, wrong_rows

BOUNDARIES = (1, 3, 5)
FINAL = "both"  # before and after the last norm
STATES = 5
SERIES = {"alone": 1, "batch": 12}  # name: concurrency
OFF_BY_ONE = 0.1


@dataclass(frozen=True, slots=True)
class Round:
    """What was seen.

    Args:
        strategy: that the ranks said they capture with.
        patch: identity of what was deployed.
        samples: dumps held against the reference.
        errors: the largest relative error of a sample, by state.
        off_by_one: the smallest error of a boundary against a state one layer off: how well that is told.
        ranks_equal: both ranks wrote the same bytes; None at TP 1.
        tokens_equal: every dump has its prompt's token ids.
        reverted: after the revert the tree of sglang is the one before, to the byte.
        launch_s, round_s: seconds until healthy, and in all.
    """

    strategy: str
    patch: str
    samples: int
    errors: Mapping[str, float]
    off_by_one: float
    ranks_equal: bool | None
    tokens_equal: bool
    reverted: bool
    launch_s: float
    round_s: float


def play(lab: Practice, truth: Truth, folder: Path, **env: str) -> Round:
    """A whole round on a lab. It leaves the server stopped and the patch reverted.

    Args:
        truth: of ``prompts.short()``.
        folder: for prompts and fetched dumps.
        env: more variables of the server.
    """
    began, before = time.monotonic(), tree(lab)
    prepare(lab, **env)
    lab.do("deploy", "--yes")
    launched = time.monotonic()
    lab.do("launch", "--wait-healthy", timeout=8 * MINUTES)
    launch_s = time.monotonic() - launched
    to = capture(lab, folder, SERIES)
    lab.do("stop", "--grace", "1")  # SGLang itself takes five to ten seconds
    lab.do("deploy", "--revert", "--yes")
    (line, *_) = manifest(lab)
    return Round(
        strategy=line["strategy"],
        patch=line["patch"],
        samples=len(list(to.glob("*.safetensors"))),
        errors=largest(hold(to, truth, BOUNDARIES)),
        off_by_one=min(
            smallest(one for one in hold(to, truth, BOUNDARIES, shift=s) if one.name != "final") for s in (-1, 1)
        ),
        ranks_equal=ranks_equal(lab, to) if lab.tp > 1 else None,
        tokens_equal=all(same_tokens(path) for path in to.glob("*.safetensors")),
        reverted=tree(lab) == before and not (lab.site / "hsops_hs_dump").exists(),
        launch_s=round(launch_s, 1),
        round_s=round(time.monotonic() - began, 1),
    )


@dataclass(frozen=True, slots=True)
class Naive:
    """What a naive capture gave.

    Args:
        errors: the largest relative error of a sample, by state, in rank 0's dumps: those that a user gets.
        wrong_rows: the share of rows that are wrong, by state.
        ranks_equal: both ranks wrote the same bytes.
    """

    errors: Mapping[str, float]
    wrong_rows: Mapping[str, float]
    ranks_equal: bool


def play_naive(lab: Practice, truth: Truth, folder: Path, kind: str, imitate: str) -> Naive:
    """Every prompt in a batch, captured by ``kind`` of ``naive.KINDS`` in place of our strategy."""
    naive.install(lab.site)
    prepare(lab, HSOPS_LAB_IMITATE=imitate, HSOPS_NAIVE=",".join([kind] * len(BOUNDARIES)))
    lab.do("deploy", "--yes")
    lab.do("launch", "--wait-healthy", timeout=8 * MINUTES)
    to = capture(lab, folder, {f"{kind}-{imitate}": 12})
    lab.do("stop", "--grace", "1")  # SGLang itself takes five to ten seconds
    return Naive(
        errors=largest(hold(to, truth, BOUNDARIES)),
        wrong_rows=wrong_rows(hold(to, truth, BOUNDARIES)),
        ranks_equal=ranks_equal(lab, to),
    )


def faults(seen: Round, *, states: int = STATES) -> list[str]:
    """What is not as promised; nothing when all is. ``states``: how many were asked for."""
    wrong = {name: f"{error:.2e}" for name, error in seen.errors.items() if error > LIMIT}
    told = {
        f"{seen.samples} samples": seen.samples != len(SERIES) * len(prompts.short()),
        f"states {', '.join(seen.errors)}": len(seen.errors) != states,
        f"relative errors {wrong}": bool(wrong),
        f"a state one layer off differs by {seen.off_by_one:.2e} only": seen.off_by_one < OFF_BY_ONE,
        "the ranks differ": seen.ranks_equal is False,
        "token ids are not those of the prompts": not seen.tokens_equal,
        "the revert left another tree": not seen.reverted,
    }
    return [text for text, bad in told.items() if bad]


def prepare(lab: Practice, **env: str) -> None:
    """Every rank writes; prompts come in chunks."""
    lab.change("patches", "hs-dump", boundaries=list(BOUNDARIES), final=FINAL)
    args = {"chunked-prefill-size": prompts.CHUNK, "sleep-on-idle": True}  # an idle server burns a core and more
    lab.change("servers", "tiny", args=args, env={"SGLANG_HS_CHECK_RANKS": "1", **env})


def capture(lab: Practice, folder: Path, series_: Mapping[str, int]) -> Path:
    """Every prompt in each series, at its concurrency, fetched; returns where the dumps are."""
    to = folder / "hs"
    for series, concurrency in series_.items():
        asked = prompts.write(folder / f"{series}.jsonl", prompts.short(), series)
        lab.do("extract", str(asked), "--concurrency", str(concurrency))
    lab.do("fetch", "--to", str(to))
    return to


def tree(lab: Practice) -> str:
    """A hash over every file of sglang: path, mode, time stamp, bytes. Without byte code, which the server writes."""
    digest = hashlib.sha256()
    root = lab.site / "sglang"
    for path in sorted(p for p in root.rglob("*") if p.is_file() and p.suffix != ".pyc"):
        told = path.stat()
        digest.update(f"{path.relative_to(root)} {told.st_mode} {told.st_mtime_ns}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def manifest(lab: Practice) -> list[dict[str, str]]:
    """The lines that rank 0 wrote."""
    return [json.loads(line) for line in (lab.dumps / "manifest.jsonl").read_text().splitlines()]


def ranks_equal(lab: Practice, fetched: Path) -> bool:
    """The second rank wrote the same bytes as the first, for every fetched dump."""
    paths = list(fetched.glob("*.safetensors"))
    return all(path.read_bytes() == (lab.dumps / "rank1" / path.name).read_bytes() for path in paths)


def same_tokens(path: Path) -> bool:
    """The token ids of a dump are its prompt's."""
    held: list[int] = load_file(path)["token_ids"].tolist()
    return held == prompts.short()[path.stem.rpartition(".")[2]]
