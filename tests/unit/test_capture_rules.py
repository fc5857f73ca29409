"""The contract: every name in it is one of SGLang's, and every breach of it is told with what to do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import facts
from hsops.core.versions import numbers
from hsops.payload.hsops_hs_dump import contract
from hsops.payload.hsops_hs_dump.rules import GRAPH_CONFIG, GRAPHS_OFF, GRAPHS_SAID, RULES, TOLD, Rule
from hsops.payload.hsops_hs_dump.strategy import STRATEGIES

RECORD = json.loads((Path(__file__).parents[1] / "cases" / "sglang-arguments.json").read_text())
FIRST, LAST = RECORD["releases"]
FINE = {"disable_radix_cache": True, "device": "cpu"}


def span(since: str, until: str) -> list[str]:
    return [since, until or LAST]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.argument)
def test_a_rule_speaks_of_an_argument_that_releases_have(rule: Rule) -> None:
    """Name and range as scripts/sglang_arguments.py read them; a name of no release is not recorded."""
    assert RECORD["arguments"].get(rule.argument) == span(rule.since, rule.until)
    assert set(rule.flags) <= set(RECORD["flags"])
    remedies = {word.lstrip("-") for word in rule.remedy.split() if word.startswith("--")}
    assert remedies <= set(RECORD["flags"])


def test_the_other_names_are_arguments_too() -> None:
    """What the hello file tells, and what is looked at for fusion."""
    assert {*TOLD, *contract.FUSION_OFF} <= set(RECORD["arguments"])


@pytest.mark.parametrize("graph", [*GRAPHS_SAID, GRAPH_CONFIG], ids=lambda graph: graph.flag)
def test_a_graph_flag_is_taken_in_its_range(graph: Any) -> None:
    """Never said to be taken where it is not; ``disable-cuda-graph`` is older than its meaning."""
    since, until = RECORD["flags"][graph.flag]

    assert numbers(since) <= numbers(graph.since) and until == (graph.until or LAST)
    assert graph.since == since or graph.flag == "disable-cuda-graph"


def test_from_the_first_release_with_graphs_on_there_is_a_flag_against_them() -> None:
    """No hole between the two."""
    newer, older = GRAPHS_OFF

    assert (older.since, newer.until) == ("0.5.10", "")
    assert numbers(newer.since) <= numbers(older.until)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.argument)
def test_a_breach_is_told_with_its_value_and_a_remedy(rule: Rule) -> None:
    """And the values that are fine are fine."""
    wrong = False if rule.needed else "something"

    found = contract.problems({**FINE, rule.argument: wrong}, "prepare-attn")

    assert found == [f"{rule.argument}={wrong!r}: {rule.why}: {rule.remedy}"]
    for value in rule.fine:
        assert not contract.problems({**FINE, rule.argument: value}, "prepare-attn")


def test_an_sglang_that_does_not_tell_its_cache_is_refused() -> None:
    """Nothing known is not the same as fine."""
    (found,) = contract.problems({"device": "cpu"}, "prepare-attn")

    assert "disable_radix_cache: this SGLang does not tell it" in found


@dataclass
class Phase:
    backend: str


@dataclass
class Config:
    prefill: Phase


GRAPHS = [
    ({"enable_piecewise_cuda_graph": True}, "without --enable-piecewise-cuda-graph"),  # 0.5.9
    ({"enable_piecewise_cuda_graph": False}, ""),
    ({"disable_piecewise_cuda_graph": False}, "--disable-piecewise-cuda-graph"),  # 0.5.10
    ({"disable_piecewise_cuda_graph": True}, ""),
    ({"cuda_graph_config": Config(Phase("tc_piecewise"))}, "--disable-prefill-cuda-graph"),  # 0.5.14
    ({"cuda_graph_config": Config(Phase("disabled"))}, ""),
    ({"cuda_graph_config": {"prefill": {"backend": "breakable"}}}, "--disable-prefill-cuda-graph"),  # 0.5.20: plain
    ({"cuda_graph_config": {"prefill": {"backend": "disabled"}}}, ""),
    ({"cuda_graph_config": None, "disable_prefill_cuda_graph": True}, ""),
    ({"cuda_graph_config": None, "disable_prefill_cuda_graph": False}, "--disable-prefill-cuda-graph"),
]


@pytest.mark.parametrize("arguments,remedy", GRAPHS)
def test_prefill_graphs_in_every_generation(arguments: dict[str, Any], remedy: str) -> None:
    """On a GPU they must be off; on a CPU there are none."""
    found = contract.problems({**FINE, **arguments, "device": "cuda"}, "prepare-attn")
    on_cpu = contract.problems({**FINE, **arguments}, "prepare-attn")

    assert not on_cpu
    assert (remedy in found[0] and len(found) == 1) if remedy else not found


@pytest.mark.parametrize(
    "argument,value",
    [
        ("enable_flashinfer_allreduce_fusion", True),
        ("flashinfer_allreduce_fusion_backend", "auto"),
        ("enable_aiter_allreduce_fusion", True),
    ],
)
def test_fusion_is_fine_where_values_are_taken_after_the_all_reduce(argument: str, value: Any) -> None:
    """The hello file says that it is on, and why that does no harm; a way that takes partial sums is refused."""
    arguments = {**FINE, argument: value}

    told = contract.facts(arguments, "prepare-attn")["fusion"]

    assert told["on"] == [argument] and "after the all-reduce" in told["fine"]
    assert not contract.problems(arguments, "prepare-attn")
    (refused,) = contract.problems(arguments, "sum-in-the-loop")
    assert argument in refused and "one rank's part" in refused


def test_fusion_that_is_off_harms_nobody() -> None:
    """Whatever the strategy."""
    assert contract.facts(FINE, "sum-in-the-loop")["fusion"] == {"on": [], "fine": "off"}


def test_every_strategy_has_an_answer_to_fusion() -> None:
    """A new one must say why its values are whole, or be refused while fusion is on."""
    fused = {**FINE, "flashinfer_allreduce_fusion_backend": "auto"}

    assert {s.name for s in STRATEGIES if contract.problems(fused, s.name)} == set()


def test_the_hello_file_gets_plain_values() -> None:
    """Whatever SGLang keeps in an argument, JSON can hold it; what nobody asked for stays out."""
    told = contract.facts({**FINE, "quantization": object(), "unheard_of": 1}, "prepare-attn")["arguments"]

    assert told["disable_radix_cache"] is True and isinstance(told["quantization"], str)
    assert "unheard_of" not in told


SPELT_OUT = 'parser.add_argument("--disable-radix-cache")\nparser.add_argument(\n    "--enable-x",\n)\n# --not-a-flag\n'
OF_FIELDS = 'class Graph:\n    disable_prefill_cuda_graph: A[\n        bool, "help --nor-this"\n    ] = False\n'


def test_the_host_tells_which_flags_its_sglang_has(tmp_path: Path) -> None:
    """Both ways that SGLang declares them; a word in a comment or a help text is none."""
    srt = tmp_path / "sglang" / "srt"
    (srt / "arg_groups" / "fields").mkdir(parents=True)
    (srt / "server_args.py").write_text(SPELT_OUT)
    (srt / "arg_groups" / "fields" / "exec_.py").write_text(OF_FIELDS)

    found = facts.flags(str(tmp_path), ["disable-radix-cache", "disable-prefill-cuda-graph", "not-a-flag", "nor-this"])

    assert found == {
        "disable-radix-cache": True,
        "disable-prefill-cuda-graph": True,
        "not-a-flag": False,
        "nor-this": False,
    }
