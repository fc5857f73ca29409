"""The trainers' own readers on what export writes, and one training step on each: `make trainers`."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hsops.core.errors import ConfigError
from hsops.core.events import ignore
from hsops.core.prompt_files import read_prompts
from hsops.lab import cache, packages
from hsops.lab.pip import Pip
from tests.dump_maker import make

HERE = Path(__file__).parent
LIST = HERE / "packages.txt"
HIDDEN, SAMPLES = 64, 12

pytestmark = [
    pytest.mark.skipif("HSOPS_TRAINERS" not in os.environ, reason="make trainers runs these"),
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="session")
def trainers() -> list[str]:
    """A command line's beginning: a Python that has the trainers. Built once, minutes."""
    lab = packages.ensure(ignore)
    key = hashlib.sha256(LIST.read_bytes()).hexdigest()[:12]
    pip = Pip(lab / "bin" / "python", ignore, 1800.0)

    def build(target: Path) -> None:
        words = ("--no-deps", "--target", str(target), "--requirement", str(LIST))
        pip.run("install", *words, task="packages", total=0, what="the trainers' packages could not be installed")

    site = cache.built(cache.folder() / f"trainers-{key}", build, ignore)
    return ["env", f"PYTHONPATH={site}", str(lab / "bin" / "python")]


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dozen samples with both final states, and their prompts."""
    base = tmp_path_factory.mktemp("dumps")
    rng = np.random.default_rng(1)
    with (base / "prompts.jsonl").open("w") as file:
        for i in range(SAMPLES):
            ids = rng.integers(0, 120, 20 + i).tolist()
            make(base / "dumps", f"s{i}", ids, boundaries=(2, 4, 6), final="both", dtype="BF16", hidden_size=HIDDEN)
            file.write(json.dumps({"id": f"s{i}", "input_ids": ids, "loss_mask": [0] * 4 + [1] * (16 + i)}) + "\n")
    return base


@pytest.mark.parametrize("trainer", ["specforge", "speculators"])
def test_the_trainer_reads_it_and_learns(trainers: list[str], dumps: Path, tmp_path: Path, trainer: str) -> None:
    """Through its own loader: every state of every row equal to the dump's, the norm and the order included."""
    export = [sys.executable, "-m", "hsops", "export", str(dumps / "dumps"), "--format", trainer]
    export += ["--prompts", str(dumps / "prompts.jsonl"), "--to", str(tmp_path / "to")]
    subprocess.run(export, check=True, timeout=120)

    reader = [*trainers, str(HERE / f"{trainer}_reader.py"), str(tmp_path / "to"), str(dumps / "dumps")]
    done = subprocess.run(reader, capture_output=True, text=True, timeout=1200, check=False)

    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["samples"], said["equal"]) == (SAMPLES, SAMPLES)
    assert np.isfinite(said["loss"])


@pytest.mark.parametrize("wrong", ["norm", "order"])
def test_the_reader_would_tell_a_wrong_convention(trainers: list[str], dumps: Path, tmp_path: Path, wrong: str) -> None:
    """The dumps that the reader compares with have the states before and after the norm, or two layers, exchanged."""
    export = [sys.executable, "-m", "hsops", "export", str(dumps / "dumps"), "--format", "speculators"]
    export += ["--prompts", str(dumps / "prompts.jsonl"), "--to", str(tmp_path / "to"), "--copy"]
    subprocess.run(export, check=True, timeout=120)
    slots = {"norm": (3, 2), "order": (0, 1)}[wrong]
    exchange(tmp_path / "to/hidden_states/hs_5.safetensors", *slots)

    reader = [*trainers, str(HERE / "speculators_reader.py"), str(tmp_path / "to"), str(dumps / "dumps")]
    done = subprocess.run(reader, capture_output=True, text=True, timeout=1200, check=False)

    assert done.returncode != 0
    assert {"norm": "the state before the norm", "order": "boundary 0"}[wrong] in done.stderr


def test_what_datasets_saves_is_read(trainers: list[str], tmp_path: Path) -> None:
    """As prompts: rows that were picked, shards, splits, parquet; each row as the library itself reads it."""
    subprocess.run([*trainers, str(HERE / "saved_datasets.py"), str(tmp_path)], check=True, timeout=600)
    rows = json.loads((tmp_path / "rows.json").read_text())

    saved, chats = read_prompts(tmp_path / "saved"), read_prompts(tmp_path / "dict/train")

    assert [(p.id, p.ids().tolist()) for p in saved] == [(row["id"], row["input_ids"]) for row in rows]
    assert [(p.id, json.loads(p.messages)["messages"]) for p in chats] == [(row["id"], row["messages"]) for row in rows]
    assert [prompt.id for prompt in read_prompts(tmp_path / "hub/data/test")] == ["s7"]
    with pytest.raises(ConfigError, match="several splits: train, test"):
        read_prompts(tmp_path / "dict")


def exchange(path: Path, one: int, other: int) -> None:
    """Two slots of every row of a bf16 dump."""
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(data[8:begin])["hidden_states"]
    first, end = head["data_offsets"]
    states = np.frombuffer(data, "<u2", (end - first) // 2, begin + first).reshape(head["shape"])
    states[:, [one, other]] = states[:, [other, one]].copy()
    path.write_bytes(data)
