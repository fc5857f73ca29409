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
from hsops.verify.live.checks import FAIL, PASS, SKIPPED, Check
from hsops.verify.live.drive import Seen
from hsops.verify.live.evidence import Scores, Taken
from hsops.verify.live.head import Answer, Launched
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
    return host, Seen(dict(NAMES), dict(made[0]), hashes, {"scored": "no answer"})


def bench(folder: Path, host: Folder, seen: Seen) -> Bench:
    """With a plain copy as its way from the host."""

    def bring(source: str, to: Path) -> None:
        shutil.copytree(source, to, dirs_exist_ok=True)

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


# states that differ by size -------------------------------------------------------------------------------------------


def moved(folder: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> tuple[Bench, Seen]:
    """In company the model computes otherwise, in a few rows; the batch was sent again with log-probabilities."""
    host, seen = captured(folder)
    chance = np.random.default_rng(0)
    states = chance.standard_normal((len(TOKENS), 3, 8), dtype=np.float32)
    other = states + np.array([0.2, 0.4, 0.5], np.float32)[None, :, None] * chance.standard_normal(states.shape)
    for name in ("batch-2", "batch-scored-1"):
        sample = make(Path(host.rank(0)), host.sample(name), TOKENS, states=other.astype(np.float32))
        seen.first[name] = Taken(replace(sample, **fields) if name == "batch-scored-1" else sample, (512,))
    alone, company = (tuple(chance.normal(-5, 2, len(TOKENS) - 1)) for _ in range(2))
    seen.names["batch-scored"] = "batch-scored-1"
    seen.answers = {"scored": Answer(alone, ()), "batch-scored": Answer(company, ())}

    def score(_agent: object, dump: str, _final: str, _launched: Launched, answer: Answer) -> dict[str, Scores]:
        assert dump.endswith("rank0/t.batch-scored-1.safetensors")
        return {"final": Scores(answer.logprobs, company, 1.0, 9.0)}

    monkeypatch.setattr("hsops.verify.live.head.score", score)
    return bench(folder, host, seen), seen


def first_look(made: Bench) -> Check:
    """The batch's, which failed by size and is the only one that did."""
    (batch,) = [check for check in made.judge() if check.name == "batch"]
    assert (batch.status, made.open) == (FAIL, {"batch": "batch"})
    return batch


def test_the_second_look_is_at_the_second_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its states come too, and its final state is held against its own log-probabilities."""
    made, _ = moved(tmp_path, monkeypatch)

    check = made.judge_again(first_look(made), LAUNCHED)

    assert check.status == PASS
    assert check.figures["server"]["lm_head"]["median"] == 0
    assert check.figures["again_rows"] == [512]
    assert made.judge_again(first_look(made), replace(LAUNCHED, load_format="dummy")).status == FAIL  # float32


def test_what_cannot_be_asked_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 the failure stays, with the reason that nothing was asked."""
    made, seen = moved(tmp_path, monkeypatch)
    first = first_look(made)
    seen.answers["scored"] = "the server refuses to tell log-probabilities: HTTP 400"

    check = made.judge_again(first, LAUNCHED)

    assert (check.status, check.reason.startswith(first.reason)) == (FAIL, True)
    assert check.reason.endswith("cannot be asked: the server refuses to tell log-probabilities: HTTP 400")


def test_a_second_dump_that_is_not_whole_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost rows are no matter of size."""
    made, seen = moved(tmp_path, monkeypatch, status="failed", reason="no space")
    first = first_look(made)

    assert made.judge_again(first, LAUNCHED).reason == "no dump: no space"
    del seen.first["batch-scored-1"]
    assert made.judge_again(first, LAUNCHED).status == FAIL


def test_a_second_time_without_company_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And in float32 what was seen stays seen."""
    made, seen = moved(tmp_path, monkeypatch)
    first = first_look(made)
    seen.first["batch-scored-1"] = replace(seen.first["batch-scored-1"], passes=(30,))

    check = made.judge_again(first, LAUNCHED)

    assert check.status == FAIL
    assert "did not compute them together" in check.reason


def test_a_refused_request_for_log_probabilities_is_skipped(tmp_path: Path) -> None:
    """Nothing was written of it, and that is no fault of the capture."""
    host, seen = captured(tmp_path)
    del seen.names["scored"], seen.first["scored-1"]
    seen.answers["scored"] = "the server refuses to tell log-probabilities: HTTP 400"

    check = bench(tmp_path, host, seen).judge_head(LAUNCHED)

    assert (check.status, check.reason) == (SKIPPED, seen.answers["scored"])
