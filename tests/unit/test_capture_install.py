"""From the registry to a wrapped trunk, around models as a server builds them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hsops.payload.hsops_hs_dump import wiring
from hsops.payload.hsops_hs_dump.hello import Hello
from hsops.payload.hsops_hs_dump.settings import Settings
from hsops.payload.hsops_hs_dump.trunk import gpu_of
from tests.unit import built_models
from tests.unit.capture_parts import settings_for


class Recorder:
    """A capture that counts, and says hello as the real one."""

    def __init__(self, _settings: Settings, hello: Hello) -> None:
        self.hello, self.batches, self.attached = hello, [], []  # type: ignore[var-annotated]

    def attach(self, trunk: Any) -> None:
        self.attached.append(trunk)
        self.hello.reasons.clear()
        self.hello.write()

    def forward(self, original: Any, model: Any, batch: Any, args: Any, kwargs: Any) -> Any:
        self.batches.append(batch)
        return original(model, *args, **kwargs)


class Process:
    """A process with a registry that is watched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.captures: list[Recorder] = []
        installer = wiring.Installer(settings_for(folder), new=self._new)
        registry = SimpleNamespace(resolve_model_cls=lambda name: (getattr(built_models, name), name))
        wiring._watch(registry, installer)
        self.resolve = registry.resolve_model_cls

    def _new(self, settings: Settings, hello: Hello) -> Recorder:
        self.captures.append(Recorder(settings, hello))
        return self.captures[-1]

    def build(self, name: str) -> Any:
        """A model of the class that the registry gives."""
        return self.resolve(name)[0]()

    @property
    def hello(self) -> dict[str, Any]:
        """What the process says of itself."""
        (path,) = (self.folder / "hello").iterdir()
        told: dict[str, Any] = json.loads(path.read_text())
        return told


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    """With the classes as they were, after the test."""
    for kind in vars(built_models).values():
        if isinstance(kind, type) and kind.__module__ == built_models.__name__:
            monkeypatch.setattr(kind, "__init__", kind.__init__)
            monkeypatch.delattr(kind, wiring.INSTALLED, raising=False)
    return Process(tmp_path)


@pytest.mark.parametrize("name,where", [("ForCausalLM", "model"), ("ForConditionalGeneration", "language_model.model")])
def test_the_trunk_of_a_built_model_is_wrapped(name: str, where: str, process: Process) -> None:
    """Also inside a wrapper, beside a tower that has layers too."""
    model = process.build(name)

    model = getattr(model, "language_model", model)
    assert model.forward(1, "batch") == 6100
    assert model.forward(1, forward_batch="named") == 6100

    (capture,) = process.captures
    assert capture.batches == ["batch", "named"] and capture.attached == [model.model]
    assert (process.hello["ok"], process.hello["strategy"]) == (True, "layer-input")
    assert process.hello["trunk"] == f"Trunk at {where}" and process.hello["model"] == name


def test_only_the_instance_is_wrapped(process: Process) -> None:
    """Another model of the class, built by somebody else, is as ever."""
    process.build("ForCausalLM")

    assert "forward" not in vars(built_models.Trunk())


@pytest.mark.parametrize(
    "name,reason",
    [
        ("Fallback", "has no part with layers, a norm and a forward that takes forward_batch"),
        ("ForCausalLMNextN", "is a draft model"),
        ("Twins", "several trunks: Trunk at thinker, Trunk at talker"),
    ],
)
def test_a_model_that_cannot_be_captured_says_why(name: str, reason: str, process: Process) -> None:
    """And works as ever."""
    model = process.build(name)

    assert process.hello["ok"] is False and reason in process.hello["reason"]
    assert not process.captures and all("forward" not in vars(part) for _, part in model.named_modules())


def test_a_draft_takes_nothing_away(process: Process) -> None:
    """It is built after the model it drafts for, in the same process."""
    process.build("ForCausalLM")
    process.build("ForCausalLMNextN")

    assert process.hello["ok"] is True and len(process.captures) == 1


def test_a_model_that_is_built_twice_is_followed(process: Process) -> None:
    """By one capture, the later instance being the one that serves."""
    first, second = process.build("ForCausalLM"), process.build("ForCausalLM")

    assert second.forward(1, "batch") == 6100 and first.forward(1, "old") == 6100
    assert [capture.attached for capture in process.captures] == [[first.model, second.model]]


def test_what_fails_while_a_model_is_built_goes_its_way(process: Process) -> None:
    """It is the model's error, not ours; the next model is followed."""
    with pytest.raises(ValueError, match="no memory"):
        process.build("Broken")

    process.build("ForCausalLM")
    assert process.hello["ok"] is True


def test_what_fails_in_us_does_not_reach_the_model(
    process: Process, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is built, and the hello file has the reason."""
    monkeypatch.setattr(Recorder, "attach", lambda *_: 1 / 0)

    model = process.build("ForCausalLM")

    assert model.forward(1, "batch") == 6100
    assert "ZeroDivisionError" in process.hello["reason"] and "NOT capturing" in capsys.readouterr().err


def test_a_registry_of_another_shape_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang goes on."""
    installer = wiring.Installer(settings_for(tmp_path))
    monkeypatch.setattr(wiring, "new_installer", lambda: installer)

    wiring.install({"ModelRegistry": object()})
    wiring.install({})

    (path,) = (tmp_path / "hello").iterdir()
    assert "registry has a shape that is not known" in json.loads(path.read_text())["reason"]


@pytest.mark.parametrize(
    "parameters,buffers,found",
    [
        (["cpu", "cuda:3", "cuda:3"], [], "cuda:3"),  # the first layers are offloaded
        (["cpu", "cpu"], ["cpu", "cuda:3"], "cuda:3"),
        (["cpu"], [], None),
        ([], [], None),
    ],
)
def test_the_gpu_of_a_model_is_where_any_of_it_lies(parameters: list[str], buffers: list[str], found: Any) -> None:
    """With CPU offload the first parameter is in host memory, and pinned memory is wanted all the same."""

    def tensors(names: list[str]) -> list[Any]:
        return [SimpleNamespace(device=Device(name)) for name in names]

    class Device(str):
        """As torch's: with a type."""

        @property
        def type(self) -> str:
            return self.partition(":")[0]

    module = SimpleNamespace(parameters=lambda: iter(tensors(parameters)), buffers=lambda: iter(tensors(buffers)))

    assert gpu_of(module) == found


@pytest.mark.parametrize("text,said", [(None, "No such file"), ("{}", "'identity'"), ("GOOD", "SGLANG_HS_WRITERS='0'")])
def test_settings_that_cannot_be_used_are_said(
    text: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong, and where each of them comes from; the server goes on."""
    monkeypatch.setattr("hsops.payload.hsops_hs_dump.settings.__file__", str(tmp_path / "settings.py"))
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("SGLANG_HS_WRITERS", "0")
    if text is not None:
        good = '{"identity": "a", "boundaries": [1], "final": "none"}'
        (tmp_path / "config.json").write_text(good if text == "GOOD" else text)

    assert wiring.new_installer.__wrapped__() is None

    told = capsys.readouterr().err
    assert "NOT capturing" in told and said in told and "hsops deploy" in told and "server's env" in told
