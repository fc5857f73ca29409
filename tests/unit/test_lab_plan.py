"""The lab's pure parts: what is to be done, the inventory, the stand-ins."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hsops.cli import lab as cli
from hsops.core.errors import UsageError
from hsops.core.inventory_file import load
from hsops.lab import environment, model, packages, practice, wheels
from hsops.lab.layout import layout
from hsops.lab.pip import _ends
from hsops.lab.record import Record, Steps, plan, read, write

RECORD = Record(sglang="0.5.9", packages="p1", python="3.11.7 /usr", shims="s1", fault=None, tp=2, inventory="i1")


def test_a_lab_that_is_as_wanted_needs_no_step() -> None:
    """``lab up`` twice does nothing the second time."""
    assert plan(RECORD, RECORD) == Steps(environment=False, furnish=False, inventory=False)


def test_a_new_lab_needs_all_steps() -> None:
    """Without a record everything is built, also after an interrupted build."""
    assert plan(None, RECORD) == Steps(environment=True, furnish=True, inventory=True)


@pytest.mark.parametrize("change", [{"sglang": "0.5.23"}, {"packages": "p2"}, {"python": "3.12.1 /usr"}])
def test_another_sglang_or_python_replaces_the_environment(change: dict[str, str]) -> None:
    """The environment and all that is put into it."""
    steps = plan(RECORD, replace(RECORD, **change))

    assert (steps.environment, steps.furnish) == (True, True)


@pytest.mark.parametrize("change", [{"fault": "busy-wait"}, {"shims": "s2"}])
def test_a_fault_leaves_sglang_alone(change: dict[str, str]) -> None:
    """A deployed patch survives a change of fault."""
    steps = plan(RECORD, replace(RECORD, **change))

    assert (steps.environment, steps.furnish) == (False, True)


def test_a_record_is_read_as_written(tmp_path: Path) -> None:
    """And anything else is no record."""
    write(tmp_path / "lab.json", RECORD)
    (tmp_path / "other.json").write_text('{"sglang": "0.5.9"}')

    assert read(tmp_path / "lab.json") == RECORD
    assert read(tmp_path / "other.json") is None
    assert read(tmp_path / "none.json") is None


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_the_inventory_of_a_lab_is_valid(tmp_path: Path, tp: int) -> None:
    """As every command will read it."""
    path = tmp_path / "inventory.yaml"
    path.write_text(practice.inventory("/home/x/a lab", tp=tp, cpus=[4, 6]))

    server = load(path).servers["tiny"]

    assert server.tp == tp
    assert server.env.get("SGLANG_CPU_OMP_THREADS_BIND") == {1: None, 2: "4|6", 4: "4|6|4|6", 8: "4|6|4|6|4|6|4|6"}[tp]


@pytest.mark.parametrize("typed", ["latest", "0.5.9;rm", "../x", "0.5.9 ", "0.4.0", "0.5.3.post1"])
def test_what_is_not_a_version_that_hsops_works_with_is_refused(typed: str) -> None:
    """Before pip or a path sees it."""
    with pytest.raises(UsageError):
        wheels.check(typed)


@pytest.mark.parametrize("typed", ["busywait", "busy-wait@nowhere", "slow-load@weights", "@weights"])
def test_an_unknown_fault_or_place_names_the_known_ones(typed: str) -> None:
    """So does the help of ``hsops lab up``, which must not load the lab to say so."""
    with pytest.raises(UsageError) as caught:
        environment.check_fault(typed)

    assert caught.value.fix.startswith(f"one of: {cli.FAULTS}; busy-wait, ")
    assert "as NAME@distributed, @weights" in caught.value.fix


def test_a_fault_at_a_place_is_known() -> None:
    """As ``lab up --fault`` takes it."""
    assert environment.check_fault("futex-wait@warm-up") == "futex-wait@warm-up"


def test_an_unknown_model_names_the_known_ones() -> None:
    """As for faults."""
    with pytest.raises(UsageError) as caught:
        model.check("llama")

    assert caught.value.fix == f"one of: {cli.MODELS}"


@pytest.mark.parametrize(
    "named, tp, served",
    [("deepseek", 4, "deepseek"), ("deepseek", 8, "deepseek-wide"), ("deepseek-wide", 2, "deepseek-wide")],
)
def test_the_model_has_a_head_for_every_rank(named: str, tp: int, served: str) -> None:
    """``lab up --tp 8`` simply works."""
    assert model.fitting(named, tp) == served
    assert json.loads(model.files(served)["config.json"]).get("num_attention_heads", 4) % tp == 0


@pytest.mark.parametrize(
    "named, tp, can", [("kimi", 8, "1, 2, 4"), ("deepseek", 3, "1, 2, 4"), ("deepseek", 6, "1, 2, 4, 8")]
)
def test_heads_that_cannot_be_dealt_out_are_refused(named: str, tp: int, can: str) -> None:
    """SGLang would say so a minute later."""
    with pytest.raises(UsageError, match="cannot be shared") as caught:
        model.fitting(named, tp)

    assert caught.value.fix == f"--tp {can}"


def test_kimi_is_the_same_language_model_inside_a_wrapper() -> None:
    """So one reference serves for both."""
    wrapper, plain = (json.loads(model.files(name)["config.json"]) for name in ("kimi", "deepseek"))

    assert wrapper["architectures"] == ["KimiK25ForConditionalGeneration"]
    assert wrapper["text_config"] == plain


@pytest.mark.parametrize("name", ["/tmp/a: b", "/tmp/a#b", '/tmp/"a"', "/tmp/a\nb", "/tmp/a%b", "/tmp/a "])
def test_a_home_that_a_file_could_not_name_is_refused(name: str) -> None:
    """Before anything is written."""
    with pytest.raises(UsageError):
        layout(Path(name))


def test_every_pin_is_exact() -> None:
    """A package set is the same on every machine."""
    pins = [pin for path in (packages.WITH_DEPENDENCIES, packages.WITHOUT) for pin in packages.pins(path.read_text())]

    assert len(pins) > 90
    assert all("==" in pin for pin in pins)


def test_a_long_line_of_pip_keeps_its_end() -> None:
    """The newest versions are listed last."""
    versions = "ERROR: no such version (from versions: " + ", ".join(f"0.{i}" for i in range(900)) + ")"

    short = _ends(versions, 100)

    assert len(short) <= 103
    assert short.endswith("0.899)")


REPOSITORY = Path(__file__).parents[2] / "inventory.yaml"


def test_the_repositorys_inventory_is_the_default_lab(tmp_path: Path) -> None:
    """What ``hsops lab up`` writes for ~/.hsops-lab, word for word in its values."""
    path = tmp_path / "inventory.yaml"
    path.write_text(practice.inventory("~/.hsops-lab", tp=2, cpus=[0, 1]))

    assert load(REPOSITORY) == load(path)


def test_the_commented_part_of_the_repositorys_inventory_is_valid(tmp_path: Path) -> None:
    """Taking away the ``#`` in column 1, as the file says, gives an inventory with the real host."""
    text = re.sub(r"^#(?=  |\S)", "", REPOSITORY.read_text(), flags=re.MULTILINE)
    path = tmp_path / "inventory.yaml"
    path.write_text(text)

    inventory = load(path)

    kimi = inventory.servers["kimi-k2.5"]
    assert (kimi.host, kimi.tp, kimi.nccl) == ("rtx8", 8, "pcie-p2p")
    assert inventory.patches[kimi.patches[0]].boundaries == (3, 31, 59)
    assert inventory.groups == {"blackwell": ("rtx8", "rtx9")}
    assert inventory.servers["tiny"] == load(REPOSITORY).servers["tiny"]
