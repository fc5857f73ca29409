"""The promise behind everything else: a row is what the model computed at that boundary.

Fetched dumps of real SGLang servers against Hugging Face transformers' DeepSeek-V3 with the same weights, in float32:
an off-by-one boundary is then wrong by a factor of 300,000 of what rounding does; in bfloat16 it would be 3.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.e2e.practice import MINUTES, Practice, practice

LIMIT = 1e-5
OFF_BY_ONE = 0.1
LAYERS = 6
BOUNDARIES = (1, 3, 5)
LENGTHS = (1, 5, 33, 120)
CHUNK = 48  # so that prompts of 120 come in three passes, and a pass holds the end of one prompt and others whole
REFERENCE = Path(__file__).with_name("reference.py")

Reference = dict[str, NDArray[np.float32]]


def prompts() -> dict[str, list[int]]:
    """Three prompts of each length, the same every time."""
    chance = random.Random(7)
    return {f"n{n}-{i}": [chance.randrange(3, 256) for _ in range(n)] for n in LENGTHS for i in range(3)}


def write_prompts(path: Path, prefix: str) -> Path:
    """All prompts as JSONL, with ids of their own."""
    lines = [json.dumps({"id": f"{prefix}.{name}", "input_ids": ids}) for name, ids in prompts().items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def reference(lab: Practice, folder: Path) -> Reference:
    """Every boundary of every prompt by transformers."""
    (folder / "prompts.json").write_text(json.dumps(prompts()))
    command = [lab.python, REFERENCE, lab.model, folder / "prompts.json", folder / "reference.npz"]
    subprocess.run(command, check=True, capture_output=True, timeout=3 * MINUTES)
    with np.load(folder / "reference.npz") as kept:
        return dict(kept)


def errors(folder: Path, truth: Reference, names: Sequence[str]) -> list[list[float]]:
    """|dump - truth| / |truth| of every sample in ``folder`` and slot, slot i being held against ``names[i]``."""
    found = []
    for path in folder.glob("*.safetensors"):
        states, prompt = load_file(path)["hidden_states"], path.stem.split(".")[1]
        assert states.shape[1] == len(names)
        wanted = [truth[f"{prompt}/{name}"] for name in names]
        found.append([float(np.linalg.norm(states[:, i] - w) / np.linalg.norm(w)) for i, w in enumerate(wanted)])
    assert len(found) == 2 * len(prompts())
    return found


def hold(folder: Path, truth: Reference, *, shift: int = 0) -> float:
    """Hold dumps to the reference at their boundaries, moved by ``shift`` layers; returns the largest error."""
    error = max(max(row) for row in errors(folder, truth, names(shift)))
    assert error <= LIMIT, f"largest relative error {error:.2e}"
    return error


def names(shift: int) -> list[str]:
    """The reference's names of the captured states, moved by ``shift`` layers (final by -1 at most)."""
    order = [str(k) for k in range(LAYERS)] + ["final"]
    return [order[min(place + shift, LAYERS)] for place in (*BOUNDARIES, LAYERS)]


@pytest.mark.e2e
@pytest.mark.timeout(10 * MINUTES)
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("sglang", ["0.5.9", "0.5.23"])
def test_fetched_states_equal_the_reference(
    sglang: str, tp: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone, batched and chunked; equal on both ranks; a boundary that is one layer off is told."""
    with practice(tmp_path, sglang=sglang, tp=tp) as lab:
        lab.change("patches", "hs-dump", boundaries=list(BOUNDARIES), final="pre-norm")
        lab.change("servers", "tiny", args={"chunked-prefill-size": CHUNK}, env={"SGLANG_HS_CHECK_RANKS": "1"})
        truth = reference(lab, tmp_path)
        lab.do("deploy", "--yes")
        lab.do("launch", "--wait-healthy", timeout=5 * MINUTES)

        lab.do("extract", str(write_prompts(tmp_path / "alone.jsonl", "alone")), "--concurrency", "1")
        lab.do("extract", str(write_prompts(tmp_path / "batch.jsonl", "batch")), "--concurrency", "12")
        lab.do("fetch", "--to", str(tmp_path / "hs"))

        lab.change("patches", "hs-dump", boundaries=[2])
        (warning,) = lab.do("deploy", "--check")["patches"][0]["warnings"]
        assert "still runs with hs-dump" in warning

        error = hold(tmp_path / "hs", truth)
        for path in (tmp_path / "hs").glob("*.safetensors"):
            assert load_file(path)["token_ids"].tolist() == prompts()[path.stem.split(".")[1]]
            if tp == 2:
                assert path.read_bytes() == (lab.dumps / "rank1" / path.name).read_bytes(), "the ranks differ"
        for shift in (-1, 1):
            with pytest.raises(AssertionError, match="largest relative error"):
                hold(tmp_path / "hs", truth, shift=shift)
            wrong = [row[: len(BOUNDARIES)] for row in errors(tmp_path / "hs", truth, names(shift))]
            assert min(min(row) for row in wrong) > OFF_BY_ONE, "a boundary that is one layer off is hard to tell"
        with capsys.disabled():
            print(f"\n  SGLang {sglang} TP {tp}: largest relative error {error:.2e}", end="")
