"""What lets SGLang import on a CPU: stand-ins, patches after an import, faults."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hsops.lab.shims import deaths, hooks, imitate, version
from hsops.lab.shims.faults import FAULTS, _trickle
from hsops.lab.shims.standins import Finder, Kernel, wanted


@pytest.fixture
def imports() -> Iterator[None]:
    """The import system is afterwards as it was."""
    finders, modules, path = list(sys.meta_path), set(sys.modules), list(sys.path)
    yield
    sys.meta_path[:], sys.path[:] = finders, path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def lenient(imports: None) -> ModuleType:
    """A stand-in for a package of decorators and types."""
    sys.meta_path.insert(0, Finder({"gpulang": True}))
    return importlib.import_module("gpulang")


def test_every_submodule_and_attribute_of_a_stand_in_exists(lenient: ModuleType) -> None:
    """Also those that no list names."""
    deep = importlib.import_module("gpulang.a.b.c")

    assert deep.anything.further.still
    assert issubclass(type("Mine", (lenient.Base,), {}), lenient.Base.__mro__[-1])
    assert lenient.float32["row", 3] is lenient.float32 or lenient.float32[0]


def test_a_decorated_kernel_can_be_defined_but_not_launched(lenient: ModuleType) -> None:
    """With and without arguments to the decorator, also twice."""

    def add(x: int) -> int:
        """Adds."""
        return x

    for kernel in (lenient.jit(add), lenient.autotune(configs=[], key=["n"])(add), lenient.jit(lenient.jit(add))):
        assert isinstance(kernel, Kernel) and kernel.__doc__ == "Adds."
        with pytest.raises(NotImplementedError, match="add was launched"):
            kernel[(1, 2)](3)


def test_a_kernel_of_a_strict_stand_in_refuses_to_be_called(imports: None) -> None:
    """A wrong number must not come out of it silently."""
    sys.meta_path.insert(0, Finder({"gpukernels": False}))
    kernels = importlib.import_module("gpukernels")

    with pytest.raises(NotImplementedError, match=r"gpukernels\.fused\.add does not exist"):
        kernels.fused.add(1, 2)


@pytest.mark.parametrize("probe", ["__path_hooks__", "__wrapped__", "__torch_function__"])
def test_a_stand_in_has_no_magic(lenient: ModuleType, probe: str) -> None:
    """Libraries ask for such names to find out what they hold."""
    assert not hasattr(lenient, probe)
    assert not hasattr(lenient.thing, probe)


@pytest.mark.parametrize(
    "sglang, extra", [("0.5.4", {"vllm"}), ("0.5.7", {"vllm"}), ("0.5.9", set()), ("0.5.15", {"cutlass", "cuda"})]
)
def test_each_version_gets_the_stand_ins_it_needs(sglang: str, extra: set[str]) -> None:
    """And no other: SGLang takes another path where it finds vLLM."""
    assert set(wanted(version(sglang))) == {"sgl_kernel", "triton", "torchvision", "torchao"} | extra


@pytest.mark.parametrize("text, numbers", [("0.5.9", (0, 5, 9)), ("0.5.10rc1", (0, 5, 10)), ("0.5.9.post1", (0, 5, 9))])
def test_versions_compare_as_numbers(text: str, numbers: tuple[int, ...]) -> None:
    """0.5.10 comes after 0.5.9."""
    assert version(text) == numbers


def test_a_patch_runs_once_after_the_import_it_waits_for(imports: None, tmp_path: Path) -> None:
    """In the order given, on the finished module."""
    (tmp_path / "late_module.py").write_text("value = 1\n")
    sys.path.insert(0, str(tmp_path))
    hooks.after_import("late_module", lambda module: module.__dict__.update(value=module.value + 1))
    hooks.after_import("late_module", lambda module: module.__dict__.update(value=module.value * 10))

    module = importlib.import_module("late_module")

    assert module.value == 20
    assert importlib.import_module("late_module").value == 20


def test_waiting_for_a_module_does_not_make_it_exist(imports: None) -> None:
    """A version without the module is left alone."""
    hooks.after_import("no_such_module_here", lambda module: None)

    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_here")


def test_every_fault_says_what_it_looks_like() -> None:
    """And hooks only into SGLang."""
    for fault in FAULTS.values():
        assert fault.looks_like
        assert all(module.startswith("sglang.srt.") for module, _ in fault.hooks)


def test_an_imitation_that_is_not_known_stops_the_server() -> None:
    """A server without it would pass for one that was tested under it."""
    ((module, patch),) = imitate.patches("in-place-norm")

    assert module.startswith("sglang.")
    with pytest.raises(ValueError, match="no imitation 'in-place-norm'; there are: in-place-norms"):
        patch(ModuleType(module))


def test_imitations_are_named_together() -> None:
    """And none is the default."""
    both = [module for module, _ in imitate.patches("in-place-norms, deferred-allreduce")]

    assert both == [imitate.NORMS, imitate.NORMS, imitate.COMMUNICATOR, imitate.ADD_NORM]
    assert list(imitate.patches("")) == []


def test_a_slow_load_reads_all_the_time(tmp_path: Path) -> None:
    """Slow is told from stuck by bytes that arrive."""
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"x" * 100_000)

    read = list(_trickle([str(weights)], 0.2))

    assert 2 <= len(read) <= 6
    assert read[:2] == [65_536, 34_464]


@pytest.mark.parametrize(
    "line,dies",
    [
        ("[2026-11-30 10:00:00 TP1] Load weight end. avail mem=1", True),
        ("[2026-11-30 10:00:00] Load weight end.", True),
        ("Load weight end.", True),
        ("[2026-11-30 10:00:00 TP0] Load weight end.", False),
        ("[2026-11-30 10:00:00 TP1] About: Load weight end", False),
    ],
)
def test_a_rank_dies_at_its_own_line_or_one_of_the_main_process(line: str, dies: bool) -> None:
    """Not at another rank's, nor at one that only speaks of it."""
    log = f"[2026-11-30 09:59:59 TP1] Load weight begin.\n{line}\n"

    assert bool(re.search(deaths.pattern_of("TP1", r"Load weight end\b"), log)) is dies


def test_no_death_is_planted_unless_asked_for() -> None:
    """The variable names the rank, the way and the line."""
    assert list(deaths.patches("")) == []
    assert [module for module, _ in deaths.patches("TP1 raise Load weight begin")] == [deaths.SCHEDULER]
