"""What the agent reads of SGLang's command line is what its own parser has, in every release: ``make flags``."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hsops import lab as labs
from hsops.agent import facts, options
from tests.matrix.test_releases import RELEASES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]
WANTED = os.environ.get("HSOPS_MATRIX", "")
ENV = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
ASK = """
import argparse, json, sys
from sglang.srt import environ
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(add_help=False)
ServerArgs.add_cli_args(parser)
json.dump([{
    "names": action.option_strings, "dest": action.dest, "nargs": 1 if action.nargs is None else action.nargs,
    "type": getattr(action.type, "__name__", "str"), "choices": sorted(map(str, action.choices or ())),
} for action in parser._actions], open(sys.argv[1], "w"))
kinds = {kind: getattr(environ, f"Env{kind}") for kind in ("Bool", "Int", "Float")}
json.dump({name: kind for name, field in vars(environ.Envs).items() for kind, made in kinds.items()
           if isinstance(field, made) and name.startswith("SGL")}, open(sys.argv[2], "w"))
"""


@pytest.mark.parametrize("sglang", [v for v in RELEASES if WANTED == "all" or v in WANTED.split()] or ["none"])
def test_the_code_says_what_the_parser_has(sglang: str, tmp_path: Path) -> None:
    """Names, destinations, numbers of values, types, and the choices that are spelt out; of variables, their types."""
    if sglang == "none":
        pytest.skip("minutes; make flags")
    lab, answer, typed = labs.up(tmp_path / "lab", sglang=sglang), tmp_path / "answer.json", tmp_path / "typed.json"
    try:
        env = {**os.environ, **ENV, "PYTHONPATH": ""}
        subprocess.run([lab.layout.python, "-c", ASK, answer, typed], env=env, check=True, timeout=600)
        (site,) = lab.layout.home.glob("venv/lib/python3*/site-packages")
        read, kinds = options.read(str(site / "sglang/srt")), facts.kinds(str(site / "sglang"))
    finally:
        labs.down(lab.layout.home, purge=True)
    real = {one["names"][0]: one for one in json.loads(answer.read_text())}

    ours = {one["names"][0]: one for one in read}
    assert set(ours) == set(real)
    assert len(kinds) > 60 and kinds == json.loads(typed.read_text())
    told = {name: faults for name, one in ours.items() if (faults := unlike(one, real[name]))}
    assert not told
    listed = [name for name, one in real.items() if one["choices"]]
    print(f"\n{sglang}: {len(kinds)} typed variables and {len(real)} options alike; of {len(listed)} with choices "
          f"{sum('choices' in ours[name] for name in listed)} spell them out")  # fmt: skip


def unlike(ours: dict[str, Any], real: dict[str, Any]) -> list[str]:
    """What the agent says otherwise than the parser; what it does not say is no fault."""
    choices = sorted(map(str, ours.get("choices", ())))
    told = {"nargs": ours.get("nargs"), "type": ours.get("type", ""), "choices": choices}
    found = [] if sorted(ours["names"]) == sorted(real["names"]) and ours["dest"] == real["dest"] else ["names"]
    unused = "type" if real["nargs"] == 0 else ""
    found += [key for key, value in told.items() if value and value != real[key] and key != unused]
    return [key for key in found if not (key == "choices" and ours.get("open"))]
