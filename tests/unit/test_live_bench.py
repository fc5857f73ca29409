"""What becomes of dumps that are whole, missing or not comparable: from lines and files to checks."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hsops.core.dumps import Sample
from hsops.verify.live.bench import Bench
from hsops.verify.live.checks import FAIL, PASS, SKIPPED
from hsops.verify.live.drive import Seen
from hsops.verify.live.evidence import Taken
from hsops.verify.live.head import Launched
from hsops.verify.live.plan import CUT, Call, Plan
from tests.dump_maker import make

TOKENS = list(range(10, 40))
NAMES = {"alone": "alone-1", "again": "again-1", "scored": "scored-1", "batch": "batch-2"}
PLAN = Plan(len(TOKENS), tuple(map(Call, NAMES)), {CUT: "no chunks"}, 256)
LAUNCHED = Launched("/models/tiny", "auto", {}, (), full_precision=False)


class Folder:
    """The check folder of two ranks, on this machine."""

    ranks, agent = 2, None

    def __init__(self, path: Path) -> None:
        self.path = path

    def rank(self, rank: int) -> str:
        return str(self.path / f"rank{rank}")

    def sample(self, name: str) -> str:
        return f"t.{name}"

    def file(self, rank: int, name: str) -> str:
        return f"{self.rank(rank)}/t.{name}.safetensors"

    def wait(self, names: list[str]) -> dict[str, tuple[Taken | None, ...]]:
        return {name: tuple(self.lines[rank].get(name) for rank in (0, 1)) for name in names}

    lines: tuple[dict[str, Taken], dict[str, Taken]]


def captured(folder: Path, *, rank1: float = 0.0, **fields: Any) -> tuple[Folder, Seen]:
    """Equal dumps of all requests; rank 1's ``alone`` is off by ``rank1``; ``fields`` change every line."""
    states = np.random.default_rng(0).standard_normal((len(TOKENS), 3, 8), dtype=np.float32)
    made, host = ({}, {}), Folder(folder / "host")
    for rank in (0, 1):
        for call, name in NAMES.items():
            off = rank1 if rank and call == "alone" else 0.0
            sample = make(Path(host.rank(rank)), host.sample(name), TOKENS, states=states + np.float32(off))
            made[rank][name] = Taken(replace(sample, **fields), (512,) if call == "batch" else (30,))
    host.lines = made
    hashes = next(iter(made[0].values())).sample.token_hash
    return host, Seen(dict(NAMES), dict(made[0]), hashes, "no answer")


def bench(folder: Path, host: Folder, seen: Seen) -> Bench:
    """With a plain copy as its way from the host."""

    def bring(source: str, to: Path) -> None:
        shutil.copytree(source, to)

    return Bench(PLAN, seen, host, here=folder / "here", bring=bring)  # type: ignore[arg-type]


def statuses(made: Bench) -> dict[str, str]:
    """By name."""
    return {check.name: check.status for check in made.judge()}


def test_a_right_capture(tmp_path: Path) -> None:
    """And what the plan left out is skipped with the plan's reason."""
    made = bench(tmp_path, *captured(tmp_path))

    assert statuses(made) == {"ranks": PASS, "distinct": PASS, "repeat": PASS, "batch": PASS, "cut": SKIPPED}
    assert [check.reason for check in made.judge() if check.name == "cut"] == ["no chunks"]


def test_ranks_that_differ_are_brought_here_and_measured(tmp_path: Path) -> None:
    """By how much, state by state."""
    made = bench(tmp_path, *captured(tmp_path, rank1=0.5))

    (check,) = [check for check in made.judge() if check.name == "ranks"]

    assert (check.status, check.figures["differ"]) == (FAIL, ["alone-1"])
    assert [(s["rank"], s["slot"], s["median"] > 0.1) for s in check.figures["states"]] == [
        (1, "boundary 1", True),
        (1, "boundary 3", True),
        (1, "final", True),
    ]


def test_a_failed_second_request_fails_the_check_it_was_for(tmp_path: Path) -> None:
    """The others are judged as ever."""
    host, seen = captured(tmp_path)
    failed = Sample(**{f: getattr(seen.first["again-1"].sample, f) for f in Sample.__dataclass_fields__})
    cached = replace(failed, status="failed", reason="its first 29 rows came from a cache and were not computed")
    seen.first["again-1"] = Taken(cached, ())

    found = {check.name: check for check in bench(tmp_path, host, seen).judge()}

    assert found["repeat"].status == FAIL and "came from a cache" in found["repeat"].reason
    assert found["batch"].status == PASS


@pytest.mark.parametrize(
    "fields, launched, reason",
    [
        ({"final": "none"}, LAUNCHED, "patches.<name>.final: pre-norm"),
        ({}, replace(LAUNCHED, load_format="dummy"), "random (load-format dummy)"),
        ({}, LAUNCHED, "no answer"),
    ],
)
def test_a_head_that_cannot_be_had_is_skipped(
    fields: dict[str, str], launched: Launched, reason: str, tmp_path: Path
) -> None:
    """With the reason; never passed."""
    check = bench(tmp_path, *captured(tmp_path, **fields)).judge_head(launched)

    assert check.status == SKIPPED
    assert reason in check.reason
