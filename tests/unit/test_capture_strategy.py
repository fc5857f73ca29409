"""Choosing a capture strategy by the shape of the installed code."""

from __future__ import annotations

import pytest

from hsops.payload.hsops_hs_dump.strategy import choose
from tests.unit.sources import COMMUNICATOR, NATIVE_MODEL, PAIR_MODEL


def test_the_strategy_goes_by_the_code() -> None:
    """A loop with SGLang's own capture uses it, even where the older way is there as well."""
    assert choose(PAIR_MODEL, COMMUNICATOR).strategy == "prepare-attn"
    assert choose(NATIVE_MODEL, "").strategy == "layers-to-capture"
    assert choose(NATIVE_MODEL, COMMUNICATOR).strategy == "layers-to-capture"


@pytest.mark.parametrize(
    "model,communicator,missing",
    [
        (PAIR_MODEL, "", "LayerCommunicator.prepare_attn returning a pair"),
        (PAIR_MODEL, COMMUNICATOR.replace("hidden_states, residual\n", "hidden_states\n"), "returning a pair"),
        (PAIR_MODEL.replace("self.norm", "self.last"), COMMUNICATOR, "self.norm"),
        (PAIR_MODEL.replace("forward_batch, input", "batch, input"), COMMUNICATOR, "forward_batch"),
        ("class Other:\n    pass\n", COMMUNICATOR, "DeepseekV2Model.forward"),
        ("def broken(:", COMMUNICATOR, "source that parses"),
    ],
)
def test_an_unknown_shape_says_what_was_looked_for(model: str, communicator: str, missing: str) -> None:
    """And chooses nothing."""
    found = choose(model, communicator)

    assert found.strategy == "" and missing in found.missing
