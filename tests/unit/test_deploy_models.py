"""Which trunk an architecture has, by sources alone."""

from __future__ import annotations

import pytest

from hsops.deploy.models import MODELS, Sources
from hsops.payload.hsops_hs_dump.strategy import COMMUNICATOR_FILE
from tests.unit.sources import COMMUNICATOR, PREPARED, SINGLE, SUMMED

BUILT = """
    def __init__(self, config):
        self.layers = make_layers(config, lambda: Layer(config), kind=lambda layer: isinstance(layer.mlp, Other))
        self.norm = Norm()

    def forward(self, input_ids"""

TEXTS = {
    COMMUNICATOR_FILE: COMMUNICATOR,
    f"{MODELS}/base.py": PREPARED.replace("\n    def forward(self, input_ids", BUILT, 1)
    + """

class Other:
    def forward(self, hidden_states, forward_batch):
        return hidden_states


class BaseForCausalLM:
    def __init__(self, config):
        self.model = self._init_model(config)

    def _init_model(self, config):
        return Model(config)


EntryClass = [BaseForCausalLM]
""",
    f"{MODELS}/wrapper.py": """
from sglang.srt.models.base import BaseForCausalLM


class Tower:
    def forward(self, pixels):
        return self.layers(pixels)


class WrapperForConditionalGeneration:
    def __init__(self, config):
        self.tower = Tower()
        self.language_model = BaseForCausalLM(config)


EntryClass = WrapperForConditionalGeneration
""",
    f"{MODELS}/child.py": f"""
from sglang.srt.models.base import Model as BaseModel

{SUMMED.replace("class Model", "class Unused").replace("class Layer", "class ChildLayer")}

KINDS = {{"one": ChildLayer}}


class ChildModel(BaseModel):
    def __init__(self, config):
        super().__init__(config, kinds=KINDS)


class ChildForCausalLM:
    def __init__(self, config):
        self.model = ChildModel(config)
""",
    f"{MODELS}/single.py": "\ufeff" + SINGLE,
    f"{MODELS}/broken.py": "class X(:\n",
}
SOURCES = Sources(TEXTS.get)


@pytest.mark.parametrize(
    "module,name", [("base", "BaseForCausalLM"), ("wrapper", "WrapperForConditionalGeneration"), ("base", "Model")]
)
def test_the_trunk_is_found_in_what_a_class_builds(module: str, name: str) -> None:
    """Across modules, methods and wrappers; a tower is none."""
    assert SOURCES.trunks(f"{MODELS}/{module}.py", name) == [(f"{MODELS}/base.py", "Model")]


def test_a_trunk_of_another_module_has_a_strategy() -> None:
    """With the layers that its constructor names, not what it only compares with."""
    found = SOURCES.trunk(f"{MODELS}/base.py", "Model")

    assert SOURCES.layers(f"{MODELS}/base.py", "Model") == [(f"{MODELS}/base.py", "Layer")]
    assert found.choice.strategy == "prepare-attn"


def test_a_subclass_brings_its_own_layers() -> None:
    """By a table of its module; forward is its base's."""
    path = f"{MODELS}/child.py"

    assert SOURCES.trunks(path, "ChildForCausalLM") == [(path, "ChildModel")]
    assert SOURCES.layers(path, "ChildModel") == [(path, "ChildLayer")]
    assert SOURCES.trunk(path, "ChildModel").choice.strategy == "layer-input"


def test_entries_are_the_registered_architectures() -> None:
    """One class or a list; a module that does not parse, or has a byte order mark, is no error."""
    found = [SOURCES.entries(f"{MODELS}/{name}.py") for name in ("base", "wrapper", "single", "broken", "missing")]

    assert found == [("BaseForCausalLM",), ("WrapperForConditionalGeneration",), (), (), ()]
    assert SOURCES.classes(f"{MODELS}/single.py") == ["Model", "Layer"]
