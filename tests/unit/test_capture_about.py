"""What a dump says of where it comes from, and which layer ids a drafter's configuration needs."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from hsops.payload.hsops_hs_dump.about import about, revision
from hsops.payload.hsops_hs_dump.drafter_ids import drafter_ids, parsed, told
from hsops.payload.hsops_hs_dump.process import Process

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "engine,version,module,boundaries,ids",
    [
        ("sglang", "0.5.9", "deepseek_v2", (3, 31, 59), (2, 30, 58)),
        ("sglang", "0.5.12.post1", "deepseek_v2", (3, 31, 59), (2, 30, 58)),
        ("sglang", "0.5.12", "deepseek_v2", (2, 30, 58), (1, 29, 57)),
        ("sglang", "0.5.13", "deepseek_v2", (3, 31, 59), (3, 31, 59)),
        ("sglang", "0.5.23", "deepseek_v2", (2, 30, 58), (2, 30, 58)),
        ("sglang", "0.5.23", "deepseek_v2", (1, 30, 58), None),
        ("sglang", "0.5.12", "deepseek_v2", (1, 30, 58), (0, 29, 57)),
        ("sglang", "0.5.23", "llama", (3, 31, 59), (2, 30, 58)),
        ("sglang", "0.5.23", "glm4_moe", (3, 31, 59), (2, 30, 58)),
        ("sglang", "0.5.23", "qwen2", (0, 3), None),
        ("sglang", "0.5.23", "somebodys", (3,), None),
        ("vllm", "", "", (3, 31, 59), (3, 31, 59)),
    ],
)
def test_the_same_layers_have_other_ids_elsewhere(
    engine: str, version: str, module: str, boundaries: tuple[int, ...], ids: tuple[int, ...] | None
) -> None:
    """A drafter that is fed other layers than it learned from is bad without an error."""
    assert drafter_ids(boundaries, engine, version, module) == ids


@pytest.mark.parametrize("boundaries", [(3, 31, 59), (2, 30, 58), (1, 5), (0, 2), (2,)])
@pytest.mark.parametrize("version", ["0.5.5", "0.5.12.post1", "0.5.13", "0.5.23"])
def test_sglang_reads_the_ids_back_as_the_boundaries(boundaries: tuple[int, ...], version: str) -> None:
    """Held against what its DeepSeek models do with the ids."""
    ids = drafter_ids(boundaries, "sglang", version, "deepseek_v2")

    if ids is None:
        assert boundaries[0] == (1 if parsed(version) >= (0, 5, 13) else 0)
    else:
        raised = parsed(version) < (0, 5, 13) or ids[0] == 1
        assert tuple(k + 1 for k in ids) == boundaries if raised else ids == boundaries


def test_a_dump_tells_the_ids_of_every_engine() -> None:
    """By range of releases; what cannot be said is null."""
    assert told((3, 31), "deepseek_v2") == {"vllm": [3, 31], "sglang<0.5.13": [2, 30], "sglang>=0.5.13": [3, 31]}
    assert told((1, 31), "deepseek_v2")["sglang>=0.5.13"] is None
    assert told((3, 31), "llama") == {"vllm": [3, 31], "sglang": [2, 30]}
    assert told((3, 31), "somebodys") == {"vllm": [3, 31]}


@pytest.mark.parametrize(
    "arguments,config,found",
    [
        ({"model_path": f"/models/hub/models--a--b/snapshots/{COMMIT}"}, None, COMMIT),
        ({"model_path": "a/b", "revision": "main"}, SimpleNamespace(_commit_hash=COMMIT), COMMIT),
        ({"model_path": "a/b", "revision": "main"}, None, "main"),
        ({"model_path": "/data/kimi"}, SimpleNamespace(_commit_hash=None), ""),
    ],
)
def test_the_revision_is_the_commit_when_it_can_be_told(arguments: dict[str, Any], config: Any, found: str) -> None:
    """From what transformers noted, from the hub's cache, or what was asked for."""
    assert revision(arguments, config) == found


def test_where_a_dump_comes_from_is_text_in_its_header() -> None:
    """Text to text, as safetensors wants it; what is no JSON value is shown as text."""
    trunk = type("DeepseekV2Model", (), {"__module__": "sglang.srt.models.deepseek_v2"})()
    trunk.layers = [SimpleNamespace(config=SimpleNamespace(_commit_hash=COMMIT))]  # where some trunks have it
    arguments = {"model_path": "/m", "quantization": None, "dtype": object, "chunked_prefill_size": 8192, "port": 1}

    found = about(trunk, "KimiK25ForConditionalGeneration", Process(0, 8, arguments), (3, 31, 59))

    assert all(isinstance(value, str) for value in found.values())
    assert (found["output_layers"], found["tp_size"], found["model"]) == ("2,30,58", "8", "/m")
    assert (found["architecture"], found["trunk"]) == ("KimiK25ForConditionalGeneration", "deepseek_v2.DeepseekV2Model")
    assert found["revision"] == COMMIT
    flags = json.loads(found["flags"])
    assert flags == {"quantization": None, "dtype": str(object), "chunked_prefill_size": 8192}
    assert sum(len(key) + len(value) for key, value in found.items()) < 2048
