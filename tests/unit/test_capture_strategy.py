"""Choosing a capture strategy by the shape of the installed code, and what the server must be launched with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hsops.payload.hsops_hs_dump import contract
from hsops.payload.hsops_hs_dump.strategy import choose
from tests.unit.sources import COMMUNICATOR, NATIVE_MODEL, PAIR_MODEL

FINE = {"disable_radix_cache": True, "device": "cuda", "pp_size": 1, "moe_a2a_backend": "none", "tp_size": 8}


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


def test_a_proper_launch_has_no_problem() -> None:
    """Arguments that this SGLang does not know are not held against it."""
    assert contract.problems(FINE) == []


@pytest.mark.parametrize(
    "argument,value",
    [
        ("disable_radix_cache", False),
        ("enable_mixed_chunk", True),
        ("enable_two_batch_overlap", True),
        ("enable_dp_attention", True),
        ("speculative_algorithm", "EAGLE3"),
        ("moe_a2a_backend", "deepep"),
        ("pp_size", 2),
        ("enable_prefill_cp", True),
        ("enable_piecewise_cuda_graph", True),
        ("disable_piecewise_cuda_graph", False),
        ("cuda_graph_config", SimpleNamespace(prefill=SimpleNamespace(backend="breakable"))),
    ],
)
def test_what_would_lose_rows_is_named(argument: str, value: object) -> None:
    """One problem, which names the argument or the flag to add."""
    (problem,) = contract.problems({**FINE, argument: value})

    assert argument in problem or "cuda-graph" in problem


def test_prefill_graphs_do_not_matter_where_they_are_off() -> None:
    """Disabled, or no GPU at all."""
    off = SimpleNamespace(prefill=SimpleNamespace(backend="disabled"))
    on = SimpleNamespace(prefill=SimpleNamespace(backend="breakable"))

    assert contract.problems({**FINE, "cuda_graph_config": off}) == []
    assert contract.problems({**FINE, "cuda_graph_config": on, "device": "cpu"}) == []


def test_the_hello_file_gets_plain_values() -> None:
    """Whatever SGLang keeps in an argument, JSON can hold it."""
    told = contract.told({**FINE, "quantization": object(), "unheard_of": 1})

    assert told["disable_radix_cache"] is True and isinstance(told["quantization"], str)
    assert "unheard_of" not in told
