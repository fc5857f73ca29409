"""Reads an export with speculators' own data set, holds it against the dumps, and trains one step of a tiny drafter.

Runs in the trainers' environment, not in hsops': ``python speculators_reader.py EXPORT DUMPS``. One JSON line.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from speculators.data_generation.offline import (
    check_hidden_states,
    find_corrupt_hidden_state_indices,
    get_existing_hidden_state_indices,
)
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import ArrowDataset
from speculators.train.dataloader import create_train_val_loaders
from transformers import LlamaConfig

export, dumps = sys.argv[1:3]
ids = {}
for line in Path(export, "hsops-export.jsonl").read_text(encoding="utf-8").splitlines():
    said = json.loads(line)
    if "id" in said:
        ids[said["file"]] = said["id"]
data = ArrowDataset(max_len=64, datapath=export, on_missing="raise")
assert len(data) == len(ids), (len(data), len(ids))
folder = Path(export) / "hidden_states"
assert find_corrupt_hidden_state_indices(folder, get_existing_hidden_state_indices(folder)) == {}

equal = 0
for row in range(len(data)):
    got = data[row]
    assert isinstance(got, dict), got  # something else when the token ids are not the data set's
    dump = load_file(f"{dumps}/{ids[f'hidden_states/hs_{row}.safetensors']}.safetensors")
    states = dump["hidden_states"]
    hidden = states.shape[2]
    assert torch.equal(got["input_ids"], dump["token_ids"])
    assert torch.equal(got["verifier_last_hidden_states"], states[:, -1]), "the state before the norm"
    for slot in range(states.shape[1] - 1):
        there = got["hidden_states"][:, slot * hidden : (slot + 1) * hidden]
        assert torch.equal(there, states[:, slot]), f"boundary {slot}, ascending"
    assert got["loss_mask"][0] == 0 and got["loss_mask"][-1] == 1 and len(got["loss_mask"]) == len(states)
    check_hidden_states(load_file(folder / f"hs_{row}.safetensors"), dump["token_ids"].tolist())
    equal += 1

VOCABULARY, DRAFTED, LAYERS = 256, 128, [2, 4, 6]
torch.manual_seed(0)
with tempfile.TemporaryDirectory() as verifier:
    config = LlamaConfig(
        hidden_size=hidden, vocab_size=VOCABULARY, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=4,
        head_dim=hidden // 4, intermediate_size=2 * hidden, max_position_embeddings=256,
        architectures=["LlamaForCausalLM"], tie_word_embeddings=False,
    )  # fmt: skip
    config.save_pretrained(verifier)
    weights = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, hidden),
        "lm_head.weight": torch.randn(VOCABULARY, hidden),
        "model.norm.weight": torch.ones(hidden),
    }
    save_file(weights, f"{verifier}/model.safetensors", metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model.safetensors")}
    Path(verifier, "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    train, _ = create_train_val_loaders(
        data_path=export, total_seq_len=64, hidden_states_dtype=torch.float32, on_missing="raise",
        vllm_endpoint="http://127.0.0.1:1/v1", request_timeout=1, max_retries=0, generation_validation_retries=0,
        max_consecutive_generation_failures=1, verifier_name_or_path=verifier, hidden_size=hidden,
        num_target_layers=len(LAYERS), num_workers=0, prefetch_factor=1, preprocess=shift_batch, train_data_ratio=0.7,
    )  # fmt: skip
    batch = next(iter(train))
    batch.pop("error_records", None)
    config.num_hidden_layers = 1
    model = Eagle3DraftModel.from_training_args(
        config, t2d=torch.arange(VOCABULARY) < DRAFTED, d2t=torch.zeros(DRAFTED, dtype=torch.long),
        draft_vocab_size=DRAFTED, norm_before_residual=False, target_layer_ids=LAYERS, ttt_steps=3,
        verifier_name_or_path=verifier, draft_attn_impl="eager",
    ).float()  # fmt: skip
options, _ = Eagle3DraftModel.get_trainer_kwargs(
    ttt_steps=3, ttt_step_loss_decay=1.0, loss_fn="kl_div", loss_implementation="eager"
)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
_, loss, _ = model(**batch, **options)
loss.backward()
optimizer.step()
print(json.dumps({"samples": len(data), "equal": equal, "loss": loss.item()}))
