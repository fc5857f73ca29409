"""verify's summary of norms: true figures, and the dump that is unlike the others is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hsops.core.container import read_header
from hsops.core.events import ignore
from hsops.core.values import look
from hsops.render.verify import norms as shown
from hsops.verify.norms import AFTER, BEFORE
from hsops.verify.verify import verify
from tests.dump_maker import as_dtype, make

T = 6


def rows(seed: int, slots: int = 3, hidden: int = 8) -> np.ndarray:
    """Random states [T, slots, H]."""
    return np.random.default_rng(seed).standard_normal((T, slots, hidden)).astype(np.float32)


def widened(states: np.ndarray, dtype: str) -> np.ndarray:
    """What a dtype keeps of float32."""
    data = as_dtype(states, dtype)
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(states.shape)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype("<f4").reshape(states.shape)


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("hidden", [8, 7, 1])
def test_norms_are_those_of_the_stored_values(tmp_path: Path, dtype: str, hidden: int) -> None:
    """Two bf16 are read out of one word; an odd hidden size is read another way."""
    states = rows(1, hidden=hidden)
    sample = make(tmp_path, "a", range(T), dtype=dtype, hidden_size=hidden, states=states)
    path = tmp_path / sample.file

    seen = look(path, read_header(path)["hidden_states"])

    assert seen.oddities == ()
    np.testing.assert_allclose(seen.norms, np.linalg.norm(widened(states, dtype), axis=-1), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_values_whose_squares_leave_float32_are_no_fault(tmp_path: Path, dtype: str) -> None:
    """The square of 1e30 is no float32 and that of 1e-30 is nothing; both rows are finite and not zero."""
    states = rows(2)
    states[1], states[2] = 1e30, 1e-30
    make(tmp_path, "a", range(T), dtype=dtype, states=states)

    assert verify(tmp_path, None, ignore).findings == ()


def test_each_place_has_its_figures(tmp_path: Path) -> None:
    """Boundaries in order, then the final state before and after the norm; the longest row is named with its token."""
    long = rows(3)
    long[4, 1] *= 1000
    make(tmp_path, "a", range(T), boundaries=(3, 31), final="both", states=long, last=rows(4)[:, 0])
    make(tmp_path, "b", range(T), boundaries=(3, 31), final="both", states=rows(5), last=rows(6)[:, 0])

    found = verify(tmp_path, None, ignore).norms

    assert [n.where for n in found] == ["boundary 3", "boundary 31", BEFORE, AFTER]
    assert [n.dumps for n in found] == [2, 2, 2, 2]
    assert (found[1].file, found[1].token) == ("a.safetensors", 4)
    assert found[1].largest == pytest.approx(np.linalg.norm(long[4, 1]), rel=1e-5)
    assert found[0].low == pytest.approx(min(np.median(np.linalg.norm(s[:, 0], axis=-1)) for s in (long, rows(5))))
    assert [line.split("  ")[0] for line in shown(found)][1:] == ["boundary 3", "boundary 31", BEFORE, AFTER]
    assert list(shown(found))[2].endswith("at token 4 of a.safetensors")


def test_a_dump_that_is_unlike_the_others_is_named(tmp_path: Path) -> None:
    """Rows of another boundary are finite, and no other check tells of them; a single long row is no such dump."""
    for i in range(12):
        states = rows(10 + i)
        states[0] *= 300
        make(tmp_path, f"s{i}", range(T), states=states)
    odd = rows(40)
    odd[:, 1] *= 5
    make(tmp_path, "odd", range(T), states=odd)

    found = verify(tmp_path, None, ignore)

    assert found.findings == ()
    assert [[o.file for o in n.outliers] for n in found.norms] == [[], ["odd.safetensors"], []]
    assert found.norms[1].unlike == 1
    assert any(line.startswith("unlike the others at boundary 3: odd.safetensors (") for line in shown(found.norms))


def test_a_dump_with_faults_is_in_no_figure(tmp_path: Path) -> None:
    """A NaN would spoil them all."""
    states = rows(7)
    states[2, 0, 3] = np.nan
    make(tmp_path, "bad", range(T), states=states)
    make(tmp_path, "good", range(T), states=rows(8))

    found = verify(tmp_path, None, ignore)

    assert [f.code for f in found.findings] == ["nan"]
    assert {n.dumps for n in found.norms} == {1}
    assert all(np.isfinite(n.largest) for n in found.norms)
