"""Models of other families on the oldest and newest shapes of SGLang: ``pytest tests/matrix/test_models.py``.

Results go to docs/reference/models-run.csv, which ``make models-table`` shows.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.practice import MINUTES, practice
from tests.fidelity import prompts
from tests.fidelity.round import faults, play
from tests.fidelity.truth import Truth
from tests.matrix.results import note_run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(15 * MINUTES)]

SCRIPT = Path(__file__).parents[1] / "fidelity/others.py"
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3-moe": "Qwen3MoeForCausalLM"}


@pytest.mark.parametrize("sglang", ["0.5.23", "0.5.9"])
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_model_of_another_family(kind: str, sglang: str, tmp_path: Path) -> None:
    """All states right, ranks equal, the revert whole."""
    asked, folder = tmp_path / "asked.json", tmp_path / "truth"
    asked.write_text(json.dumps(prompts.short()))
    with practice(tmp_path, sglang=sglang, tp=2) as lab:
        model = lab.home / "models" / kind
        command = [lab.python, SCRIPT, kind, model, asked, folder]
        subprocess.run(command, check=True, capture_output=True, timeout=5 * MINUTES)
        lab.change("servers", "tiny", model=str(model))
        seen = play(lab, Truth(folder), tmp_path)

    assert faults(seen) == []
    note_run(sglang, ARCHITECTURES[kind], "2", "source", f"{max(seen.errors.values()):.1e}")
