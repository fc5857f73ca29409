"""``from hsops import ...``: what docs/reference/python.md promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hsops
from hsops import HsopsError, check_dumps, diagnose_log, load_inventory, read_dump, samples
from tests.dump_maker import make

ROOT = Path(__file__).parents[2]


def test_the_package_loads_nothing_until_it_is_asked() -> None:
    """`import hsops` must stay free for the command line; an unknown name is an ordinary error."""
    ask = "import sys, hsops; print(HEAVY); hsops.samples; print(HEAVY)".replace("HEAVY", "'numpy' in sys.modules")

    done = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == ["False", "True"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hsops.nothing  # noqa: B018


def test_every_name_is_there() -> None:
    """And nothing else is public."""
    assert all(getattr(hsops, name) for name in hsops.__all__)
    assert set(hsops.__all__) == {*hsops.api.__all__, "__version__"}


@pytest.mark.parametrize("dtype,exact", [("F32", 0.0), ("BF16", 1 / 128), ("F16", 1 / 1024)])
def test_a_dump_is_read_as_floats(tmp_path: Path, dtype: str, exact: float) -> None:
    """In every dtype that models have; bf16 loses nothing by being read."""
    states = np.random.default_rng(1).standard_normal((5, 3, 8), dtype=np.float32)
    made = make(tmp_path, "a", [5, 6, 7, 8, 9], final="both", dtype=dtype, states=states)

    dump = read_dump(tmp_path / made.file)

    assert dump.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert (dump.hidden_states.dtype, dump.hidden_states.shape) == (np.float32, (5, 3, 8))
    np.testing.assert_allclose(dump.hidden_states, states, rtol=exact, atol=0)
    assert dump.last_hidden_states is not None and dump.last_hidden_states.shape == (5, 8)
    assert samples(tmp_path)["a"].tokens == 5
    assert check_dumps(tmp_path).findings == ()


def test_what_is_no_dump_is_an_error_of_ours(tmp_path: Path) -> None:
    """With what is wrong; so is an inventory that is none."""
    (tmp_path / "x.safetensors").write_bytes(b"nothing of the kind")

    with pytest.raises(HsopsError, match="no safetensors header"):
        read_dump(tmp_path / "x.safetensors")
    with pytest.raises(HsopsError, match=r"no inventory here"):
        load_inventory(tmp_path / "inventory.yaml")


def test_a_log_is_judged(tmp_path: Path) -> None:
    """As `hsops diagnose --log` does."""
    (tmp_path / "log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")

    verdict = diagnose_log(tmp_path / "log", tp=8)

    assert (verdict.family, verdict.exit_code) != ("", 0)
    assert verdict.evidence


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Word for word, on a folder of dumps."""
    example = re.findall(r"```python\n(.*?)```", (ROOT / "docs/reference/python.md").read_text(), re.DOTALL)[0]
    for name in ("a", "b"):
        make(tmp_path / "hs", name, [5, 6, 7])
    monkeypatch.chdir(tmp_path)

    exec(compile(example, "docs/reference/python.md", "exec"), {})

    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told] == ["a", "b"]
    assert "(1, 3)" in told[0]


def test_the_page_names_what_there_is() -> None:
    """Each name, and no other."""
    page = (ROOT / "docs/reference/python.md").read_text()

    named = set(re.findall(r"^\| `(\w+)\(", page, re.MULTILINE))

    assert named == set(hsops.__all__) - {"Dump", "HsopsError", "__version__"}


def test_the_changelog_is_of_this_version() -> None:
    """Its first heading: the version that `hsops --version` says, or what comes after it."""
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert headings[headings[0] == "Unreleased"].split()[0] == hsops.__version__
