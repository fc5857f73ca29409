"""One forward pass with capture, around a model as the taps see it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors import safe_open

from hsops.payload.hsops_hs_dump.capture import Capture
from hsops.payload.hsops_hs_dump.hello import Hello
from hsops.payload.hsops_hs_dump.manifest import MANIFEST
from hsops.payload.hsops_hs_dump.process import Process
from hsops.payload.hsops_hs_dump.requests import Requests
from hsops.payload.hsops_hs_dump.rows import Ticket
from tests.unit.capture_parts import InMemory, manifest, settings_for


class Gathered(InMemory):
    """A stage that takes whatever comes by."""

    def __init__(self, rows: int, slots: int, *, last: bool, keep: bool) -> None:
        super().__init__([], slots, last=last)
        self.problem, self._left = "", set(range(slots + last))

    def take(self, slot: int, value: object) -> None:
        self._left.discard(slot)

    def seal(self, token_ids: list[int]) -> None:
        self._ids = token_ids
        self.problem = f"missing {self._left}" if self._left else ""


class Model:
    """A module with two layers' communicators and a norm, as ``taps`` sees a model."""

    def __init__(self) -> None:
        communicator = type("Communicator", (), {"prepare_attn": lambda _self, hidden: (hidden, hidden)})
        self.layers = [SimpleNamespace(layer_communicator=communicator()) for _ in range(4)]
        self.hooks: list[Any] = []
        self.norm = SimpleNamespace(register_forward_hook=self._hook)

    def _hook(self, hook: Any) -> Any:
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    def forward(self, hidden: list[int]) -> list[int]:
        for layer in self.layers:
            layer.layer_communicator.prepare_attn(hidden)
        for hook in self.hooks:
            hook(self.norm, (hidden,), (hidden, hidden))
        return hidden


def capture_in(folder: Path, **changes: Any) -> tuple[Capture, Hello]:
    arguments = {"disable_radix_cache": True, **changes.pop("arguments", {})}
    process = Process(changes.pop("rank", 0), 2, arguments)
    settings = settings_for(folder, **changes)
    hello = Hello(settings, "0.5.9", strategy="prepare-attn")
    return Capture(settings, hello, Requests(), new_stage=Gathered, ask=lambda: process), hello


def batch(*requests: tuple[Ticket | None, int, int], mode: str = "EXTEND") -> Any:
    return SimpleNamespace(
        forward_mode=SimpleNamespace(name=mode),
        input_ids=list(range(sum(length for _, length, _ in requests))),
        extend_seq_lens_cpu=[length for _, length, _ in requests],
        extend_prefix_lens_cpu=[start for _, _, start in requests],
        _hsops_tickets=[ticket for ticket, _, _ in requests],
    )


def run(capture: Capture, model: Model, made: Any) -> Any:
    return capture.forward(Model.forward, model, made, (made.input_ids,), {})


def written(capture: Capture, folder: Path) -> dict[str, tuple[str, str]]:
    assert capture._writers
    capture._writers.close()
    return {sample.id: (sample.status, sample.reason) for sample in manifest(folder)}


def test_a_pass_of_ours_is_captured_and_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    """What forward returns is what it returned before; no tap and no hook stay behind."""
    capture, hello = capture_in(tmp_path)
    model, made = Model(), batch((Ticket("a", 3), 3, 0))

    returned = run(capture, model, made)

    assert returned is made.input_ids
    assert not model.hooks and all("prepare_attn" not in vars(layer.layer_communicator) for layer in model.layers)
    assert written(capture, tmp_path) == {"a": ("ok", "")}
    assert json.loads(next((tmp_path / "hello").glob("*.json")).read_text())["ok"] is True
    assert hello.rank == 0
    with safe_open(tmp_path / "a.safetensors", "numpy") as dump:
        told = dump.metadata()
    assert (told["tp_size"], told["sglang"], told["strategy"]) == ("2", "0.5.9", "prepare-attn")
    assert told["output_layers"] == "0,2" and "before layer k" in told["convention"]


@pytest.mark.parametrize("mode,lines", [("DECODE", {}), ("MIXED", {"a": "failed"}), ("TARGET_VERIFY", {"a": "failed"})])
def test_only_prefill_is_captured(mode: str, lines: dict[str, str], tmp_path: Path) -> None:
    """Decoding is none of ours; a mode that merely looks like prefill fails the sample."""
    capture, _ = capture_in(tmp_path)

    run(capture, Model(), batch((Ticket("a", 3), 3, 0), mode=mode))

    assert {id_: status for id_, (status, _) in written(capture, tmp_path).items()} == lines


def test_foreign_requests_touch_nothing(tmp_path: Path) -> None:
    """Health probes come all the time; not even the model is looked at."""
    capture, _ = capture_in(tmp_path)

    run(capture, Model(), batch((None, 1, 0)))

    assert not list(tmp_path.iterdir())


def test_a_second_request_for_an_unfinished_id_replaces_the_first(tmp_path: Path) -> None:
    """The client gave up and asks again: one whole file, no failure."""
    capture, _ = capture_in(tmp_path)
    model, first, second = Model(), Ticket("a", 4), Ticket("a", 4)

    run(capture, model, batch((first, 2, 0)))
    run(capture, model, batch((second, 2, 0)))
    run(capture, model, batch((first, 2, 2), (second, 2, 2)))

    assert written(capture, tmp_path) == {"a": ("ok", "")}


@pytest.mark.parametrize(
    "changes,reason",
    [
        ({"boundaries": (1, 9)}, "boundaries 9: this model has 0 to 3"),
        ({"arguments": {"disable_radix_cache": False}}, "--disable-radix-cache"),
        ({"arguments": {"speculative_algorithm": "EAGLE3"}}, "speculative_algorithm"),
    ],
)
def test_what_makes_capture_wrong_keeps_it_inert_and_is_said(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """The hello file says no and why; requests run as if nothing were installed."""
    capture, _ = capture_in(tmp_path, **changes)

    run(capture, Model(), batch((Ticket("a", 3), 3, 0)))

    told = json.loads(next((tmp_path / "hello").glob("*.json")).read_text())
    assert told["ok"] is False and reason in told["reason"]
    assert not (tmp_path / MANIFEST).exists()


def test_a_dump_folder_that_cannot_be_made_is_said_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no place for a hello file; the pass itself goes on."""
    (tmp_path / "file").write_text("in the way")
    capture, hello = capture_in(tmp_path / "file")

    returned = run(capture, Model(), batch((Ticket("a", 3), 3, 0)))

    assert returned == [0, 1, 2] and hello.reasons
    assert "NOT capturing: the dump folder cannot be written" in capsys.readouterr().err
