"""Reads an export with SpecForge's own loader, holds it against the dumps, and trains one step of a tiny drafter.

Runs in the trainers' environment, not in hsops': ``python specforge_reader.py EXPORT DUMPS JOURNAL``. One JSON line.
"""

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

import torch
from safetensors.torch import load_file, save_file

warnings.simplefilter("ignore")
os.environ["SPECFORGE_VALIDATE_OFFLINE_FEATURES"] = "1"
export, dumps = sys.argv[1:3]
rows = {}
for line in Path(export, "hsops-export.jsonl").read_text(encoding="utf-8").splitlines():
    said = json.loads(line)
    if "id" in said:
        rows[said["file"]] = said["id"]

from specforge.algorithms.eagle3.data import build_offline_collator, build_offline_normalizer, build_offline_reader  # noqa: E402
from specforge.runtime.data_plane.feature_dataloader import FeatureDataLoader  # noqa: E402
from specforge.runtime.data_plane.feature_store import LocalFeatureStore  # noqa: E402

LENGTH = 64
refs = build_offline_reader(export, run_id="test", ttt_length=3, max_len=LENGTH).read()
assert len(refs) == len(rows), (len(refs), len(rows))


def batches(batch_size):
    """SpecForge's loader over all files."""
    return FeatureDataLoader(
        LocalFeatureStore(),
        refs=refs,
        batch_size=batch_size,
        collate_fn=build_offline_collator(),
        per_sample_transform=build_offline_normalizer(LENGTH),
    )


equal = 0
for ref, batch in zip(refs, batches(1), strict=True):
    dump = load_file(
        f"{dumps}/{rows[os.path.relpath(ref.feature_store_uri.removeprefix('file://'), export)]}.safetensors"
    )
    states, got = dump["hidden_states"], batch.tensors
    tokens, hidden = states.shape[0], states.shape[2]
    assert ref.num_tokens == tokens
    assert torch.equal(got["input_ids"][0, :tokens], dump["token_ids"])
    assert torch.equal(got["target"][0, :tokens], dump["last_hidden_states"]), "the state after the norm"
    for slot in range(3):
        there = got["hidden_state"][0, :tokens, slot * hidden : (slot + 1) * hidden]
        assert torch.equal(there, states[:, slot]), f"boundary {slot} of three, ascending"
    assert got["loss_mask"][0, 0] == 0 and got["loss_mask"][0, tokens - 2] == 1
    equal += 1


class CrossEntropy:
    """SpecForge's loss is a Triton kernel, which no CPU runs at any speed; this is the same in torch."""

    @staticmethod
    def apply(logits, target, mask):
        """Mean over rows."""
        return -(target * torch.log_softmax(logits.float(), -1) * mask).sum(-1).mean()


sys.modules["specforge.core.loss"] = stand_in = ModuleType("specforge.core.loss")
stand_in.LogSoftmaxLoss = CrossEntropy

# one step: a target that is only its head, a drafter of one layer
from specforge.algorithms.eagle3.model import OnlineEagle3Model  # noqa: E402
from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3  # noqa: E402
from specforge.modeling.target.target_head import TargetHead  # noqa: E402
from specforge.training.strategies.base import Eagle3TrainStrategy  # noqa: E402
from transformers import LlamaConfig  # noqa: E402

VOCABULARY, DRAFTED = 256, 128
torch.manual_seed(0)
sizes = {
    "hidden_size": hidden, "vocab_size": VOCABULARY, "num_attention_heads": 4, "num_key_value_heads": 4,
    "head_dim": hidden // 4, "intermediate_size": 2 * hidden, "max_position_embeddings": 256,
}  # fmt: skip
with tempfile.TemporaryDirectory() as target:
    about = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 8, **sizes}
    names = ("lm_head.weight", "model.embed_tokens.weight")
    save_file({name: torch.randn(VOCABULARY, hidden) for name in names}, f"{target}/model.safetensors")
    for name, content in (
        ("config.json", about),
        ("model.safetensors.index.json", {"weight_map": dict.fromkeys(names, "model.safetensors")}),
    ):
        with open(f"{target}/{name}", "w", encoding="utf-8") as file:
            json.dump(content, file)
    head = TargetHead.from_pretrained(target).float()
config = LlamaConfig(num_hidden_layers=1, draft_vocab_size=DRAFTED, target_hidden_size=hidden, pad_token_id=0, **sizes)
drafter = LlamaForCausalLMEagle3(config, attention_backend="sdpa").float()
drafter.t2d.copy_(torch.arange(VOCABULARY) < DRAFTED)
drafter.d2t.zero_()
strategy = Eagle3TrainStrategy(OnlineEagle3Model(drafter, length=3, attention_backend="sdpa"), target_head=head)
optimizer = torch.optim.AdamW([p for p in drafter.parameters() if p.requires_grad], 1e-3)
batch = next(iter(batches(2)))
for key, value in batch.tensors.items():
    if torch.is_tensor(value) and value.is_floating_point():
        batch.tensors[key] = value.float()
loss = strategy.forward_loss(batch).loss
loss.backward()
optimizer.step()
print(json.dumps({"samples": len(refs), "equal": equal, "loss": float(loss)}))
