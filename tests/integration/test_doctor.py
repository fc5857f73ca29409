"""``hsops doctor`` on a host: the real program and agent, with a stand-in for nvidia-smi where it is about GPUs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hsops.remote.agent import Agent
from hsops.remote.local import LocalHost
from tests.hosts import run_dir

EIGHT = r"""#!/bin/sh
case "$*" in
*--query-gpu=*)
  for i in 0 1 2 3 4 5 6 7; do
    printf '%s, GPU-%s, NVIDIA RTX PRO 6000 Blackwell Server Edition, 580.95.05, 12.0, ' $i $i
    echo '74000, 97887, 0, 31.20, P8, 1, 5, 16, 16'
  done ;;
*--query-compute-apps=*) echo "PID, 72704, GPU-3" ;;
"topo -p2p r") printf ' \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n' ;;
"topo -p2p w") printf ' \tGPU0\tGPU1\n GPU0\tX\tCNS\n GPU1\tOK\tX\n' ;;
*) echo "| NVIDIA-SMI 580.95.05    Driver Version: 580.95.05    CUDA Version: 13.0 |" ;;
esac
"""
HANGS = "#!/bin/sh\nexec sleep 60\n"


def doctor(folder: Path, smi: str, *words: str, servers: str = "") -> tuple[int, dict[str, Any], str]:
    """Exit code, envelope and text of the doctor on this machine, whose nvidia-smi is ``smi`` (none: empty)."""
    (folder / "bin").mkdir(exist_ok=True)
    if smi:
        (folder / "bin/nvidia-smi").write_text(smi)
        (folder / "bin/nvidia-smi").chmod(0o755)
    inventory = folder / "inventory.yaml"
    inventory.write_text(
        f"hosts:\n  box: {{ssh: local, python: {sys.executable}, state_dir: {folder}/state, dumps: {folder}/dumps}}\n"
        + servers
    )
    environment = {**run_dir(), "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    argv = [sys.executable, "-m", "hsops", "-i", str(inventory), "--host", "box", "doctor", *words]
    quiet: dict[str, Any] = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "env": environment}
    text, machine = (subprocess.run([*argv, *more], timeout=100, check=False, **quiet) for more in ((), ("--json",)))
    assert "Traceback" not in text.stdout + text.stderr
    assert text.returncode == machine.returncode
    return text.returncode, json.loads(machine.stdout.splitlines()[-1]), text.stdout


def test_a_stranger_on_a_gpu_is_a_blocker(tmp_path: Path) -> None:
    """Eight GPUs, memory held by a process that no run owns: named with its command, exit 1."""
    smi = EIGHT.replace("PID", str(os.getpid()))

    code, envelope, text = doctor(tmp_path, smi)

    findings = envelope["data"]["hosts"]["box"]["findings"]
    held = next(one for one in findings if "holds" in one["what"])
    assert code == 1 and held["level"] == "blocker"
    assert f"pid {os.getpid()} (" in held["what"] and "holds 71 GiB on GPU 3" in held["what"]
    (peers,) = [one["what"] for one in findings if "no peer-to-peer" in one["what"]]
    assert peers.endswith("CNS)")  # of writes alone: reads are all OK
    assert "8x RTX PRO 6000 Blackwell Server Edition (96 GiB) · driver 580.95.05" in text
    assert "box  FAIL  pid" in text and text.splitlines()[-1].startswith("1 blocker")


def test_a_host_without_gpus_says_so(tmp_path: Path) -> None:
    """No nvidia-smi: a note, and nothing is made up."""
    code, envelope, text = doctor(tmp_path, "")

    (row,) = envelope["data"]["hosts"].values()
    assert code == 0, text
    assert [one["what"] for one in row["findings"] if one["area"] == "gpu"] == [
        "no nvidia-smi here: nothing is known of GPUs"
    ]
    assert row["facts"]["gpus"] is None


def test_a_server_that_cannot_start_is_told_before(tmp_path: Path) -> None:
    """No SGLang, a model that is half downloaded, a port that is taken."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "a.safetensors").write_bytes(b"12345678")
    (model / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        servers = f"servers:\n  kimi: {{host: box, model: {model}, port: {port}}}\n"

        code, envelope, _ = doctor(tmp_path, "", servers=servers)

    told = [one["what"] for one in envelope["data"]["hosts"]["box"]["findings"] if one["level"] == "blocker"]
    assert code == 1
    assert f"{sys.executable} finds no SGLang" in told
    assert "kimi: 1 of 2 weight files are missing (b.safetensors)" in told
    assert any(what.startswith(f"kimi: port {port} is taken by pid {os.getpid()}") for what in told)


def test_a_tool_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi without its firmware: the other looks come, and it is ended."""
    (tmp_path / "nvidia-smi").write_text(HANGS)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    agent = Agent(LocalHost("here"), python=sys.executable, state_dir=str(tmp_path / "state"))
    began = time.monotonic()

    raw = agent.call("doctor", dumps=str(tmp_path), servers=[], look_s=3.0)

    late = {one["look"] for one in raw["could_not"] if one["why"] == "timed-out"}
    assert time.monotonic() - began < 30  # not the minute that the tool takes
    assert late >= {"gpus", "cuda", "peers", "holders"}
    assert raw["hello"]["python"] and raw[f"folder {tmp_path}"]["writable"]


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """The dump folder's parent is a file: the doctor says so before an extraction would."""
    (tmp_path / "dumps").write_text("a file")

    code, envelope, _ = doctor(tmp_path, "")

    told = [one["what"] for one in envelope["data"]["hosts"]["box"]["findings"]]
    assert code == 1 and f"dumps cannot be written to {tmp_path}/dumps" in told
