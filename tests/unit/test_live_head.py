"""Which head a model has: found in its configuration and its files, or refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from hsops.payload.hsops_hs_dump.head import Head, UnknownHeadError, head_of
from hsops.payload.hsops_hs_dump.weights import files_of, folder_of, tensors_of
from hsops.verify.live.head import Answer, read_answer

NAMES = {"model.norm.weight", "lm_head.weight", "model.embed_tokens.weight", "model.layers.0.mlp.weight"}
PLAIN = {"architectures": ["DeepseekV3ForCausalLM"], "rms_norm_eps": 1e-6, "vocab_size": 256}


def test_a_plain_head() -> None:
    """Norm, matrix, epsilon."""
    assert head_of(PLAIN, NAMES) == Head("model.norm.weight", "lm_head.weight", 1e-6, None, 256)


def test_a_model_inside_a_wrapper() -> None:
    """Kimi-K2.5: the language part's configuration lies inside, its tensors have a prefix."""
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": {**PLAIN, "rms_norm_eps": 1e-5}}
    names = {f"language_model.{name}" for name in NAMES}

    head = head_of(config, names)

    assert (head.norm, head.matrix) == ("language_model.model.norm.weight", "language_model.lm_head.weight")
    assert head.epsilon == 1e-5


@pytest.mark.parametrize(
    "architecture, tied, names, matrix",
    [
        ("LlamaForCausalLM", True, NAMES, "model.embed_tokens.weight"),
        ("LlamaForCausalLM", True, NAMES - {"lm_head.weight"}, "model.embed_tokens.weight"),
        ("Qwen3ForCausalLM", None, NAMES - {"lm_head.weight"}, "model.embed_tokens.weight"),
        ("Qwen3ForCausalLM", False, NAMES, "lm_head.weight"),
        ("DeepseekV3ForCausalLM", True, NAMES, "lm_head.weight"),
    ],
)
def test_a_tied_matrix(architecture: str, tied: bool | None, names: set[str], matrix: str) -> None:
    """The embedding's, where the model says so or has no other."""
    config = {**PLAIN, "architectures": [architecture], "tie_word_embeddings": tied}

    assert head_of(config, names).matrix == matrix


def test_capped_logits_are_known() -> None:
    """SGLang caps them for every model that asks for it."""
    assert head_of({**PLAIN, "final_logit_softcapping": 30}, NAMES).cap == 30.0
    assert head_of({**PLAIN, "final_logit_softcapping": None}, NAMES).cap is None


@pytest.mark.parametrize(
    "changes, names, why",
    [
        ({"architectures": ["Gemma3ForCausalLM"]}, NAMES, "Gemma3ForCausalLM is not one"),
        ({"architectures": None}, NAMES, "none is not one"),
        ({"logit_scale": 0.0625}, NAMES, "logit_scale = 0.0625"),
        ({"rms_norm_eps": None}, NAMES, "rms_norm_eps"),
        ({}, NAMES | {"lm_head.weight_scale"}, "quantised: the checkpoint has lm_head.weight_scale"),
        ({}, (NAMES - {"lm_head.weight"}) | {"lm_head.qweight"}, "quantised"),
        ({}, NAMES | {"lm_head.bias"}, "bias"),
        ({}, NAMES - {"lm_head.weight"}, "has no lm_head.weight"),
        ({}, {"transformer.ln_f.weight"}, "no last norm"),
    ],
)
def test_what_is_not_known_is_refused(changes: dict[str, Any], names: set[str], why: str) -> None:
    """Judging it by a wrong formula would fail a capture that is right."""
    with pytest.raises(UnknownHeadError, match=why):
        head_of({**PLAIN, **changes}, names)


# files ----------------------------------------------------------------------------------------------------------------


def model(folder: Path, *, index: bool) -> dict[str, np.ndarray[Any, Any]]:
    """Two files with two tensors each."""
    chance = np.random.default_rng(0)
    tensors = {name: chance.standard_normal((5, 3)).astype(np.float32) for name in "abcd"}
    shards = {"model-1.safetensors": "ab", "model-2.safetensors": "cd"}
    for shard, names in shards.items():
        save_file({n: tensors[n] for n in names}, folder / shard, metadata={"format": "pt"})
    if index:
        listed = {"weight_map": {n: shard for shard, names in shards.items() for n in names}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(listed))
    return tensors


@pytest.mark.parametrize("index", [True, False])
def test_tensors_are_found_in_the_file_that_holds_them(index: bool, tmp_path: Path) -> None:
    """By the index, or by looking; and some of their rows are read alone."""
    tensors = model(tmp_path, index=index)

    files = files_of(str(tmp_path))

    assert {name: Path(path).name for name, path in files.items()} == {
        "a": "model-1.safetensors",
        "b": "model-1.safetensors",
        "c": "model-2.safetensors",
        "d": "model-2.safetensors",
    }
    held = tensors_of(files["d"])["d"]
    assert (held.dtype, held.shape) == ("F32", (5, 3))
    assert bytes(held.rows(2, 2)) == tensors["d"][2:4].tobytes()


def test_a_cut_file_is_told(tmp_path: Path) -> None:
    """Not taken for zeros."""
    model(tmp_path, index=False)
    path = tmp_path / "model-2.safetensors"
    held = tensors_of(str(path))["d"]
    path.write_bytes(path.read_bytes()[:-4])

    with pytest.raises(OSError, match="cut"):
        held.rows(0, 5)


def test_a_folder_without_safetensors_is_told(tmp_path: Path) -> None:
    """Old checkpoints."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"")

    with pytest.raises(FileNotFoundError, match="no safetensors"):
        files_of(str(tmp_path))


def test_a_hub_id_is_looked_for_in_the_servers_cache(tmp_path: Path) -> None:
    """By the variables of the server's launch; what is not there is not downloaded."""
    kept = tmp_path / "hub/models--org--name"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs/main").write_text("abc")

    assert folder_of("org/name", {"HF_HOME": str(tmp_path)}) == str(kept / "snapshots/abc")
    assert folder_of("org/name", {"HF_HUB_CACHE": str(tmp_path / "hub")}) == str(kept / "snapshots/abc")
    assert folder_of(str(tmp_path), {}) == str(tmp_path)
    with pytest.raises(FileNotFoundError):
        folder_of("org/other", {"HF_HOME": str(tmp_path)})


# the server's account -------------------------------------------------------------------------------------------------


def meta(ids: list[int]) -> dict[str, Any]:
    """``meta_info`` as SGLang writes it."""
    return {
        "input_token_logprobs": [[None, ids[0], None], *([-1.5, token, None] for token in ids[1:])],
        "input_top_logprobs": [None, *([[-0.5, 7, None]] for _ in ids[1:])],
    }


def test_the_servers_log_probabilities() -> None:
    """The first token has none."""
    assert read_answer(meta([4, 5, 6]), [4, 5, 6]) == Answer((-1.5, -1.5), (7, 7))


@pytest.mark.parametrize("odd", [None, {}, {"input_token_logprobs": 3}, {**meta([4, 5, 6]), "input_top_logprobs": []}])
def test_another_form_is_said(odd: Any) -> None:
    """A release that changed it makes the check skipped, not wrong."""
    assert isinstance(read_answer(odd, [4, 5, 6]), str)
    assert isinstance(read_answer(meta([4, 5]), [4, 5, 6]), str)
