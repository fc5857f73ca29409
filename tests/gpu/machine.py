"""A GPU machine made ready: an interpreter with SGLang beside the machine's own PyTorch, and hsops to drive it.

Nothing is installed outside ``HOME``, but for the size of /dev/shm, which starts small on machines whose memory grows.
With HSOPS_GPU_REHEARSAL=<a lab's home> everything runs on that lab's CPU (rehearsal.py), to see that it runs at all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu import rehearsal

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
SITE, FLASHINFER, TOOLS = (REPOSITORY / ".gpu" / f"{name}.tar.xz" for name in ("site", "flashinfer", "tools"))
HOME = Path(os.environ.get("HSOPS_GPU_HOME", "/tmp/hsops-gpu"))
LAB = os.environ.get("HSOPS_GPU_REHEARSAL", "")
PYTHON = Path(LAB or HOME, "venv/bin/python")  # runs SGLang and the agent
CLIENT = Path(sys.executable) if LAB else PYTHON  # runs hsops
INVENTORY = HOME / "inventory.yaml"
RAM = HOME / "ram" if LAB else Path("/dev/shm/hsops-gpu")
DUMPS = RAM / "dumps"
TP = int(os.environ.get("HSOPS_GPU_TP", "0"))  # ranks of those servers that may have several; 0: what each script says
SGLANG = "0.5.12.post1"  # in the archive
BASE_ARGS: dict[str, Any] = {
    "load-format": "dummy",
    "skip-tokenizer-init": True,
    "attention-backend": "triton",
    "sampling-backend": "pytorch",
    "grammar-backend": "none",
    "disable-radix-cache": True,
    "disable-cuda-graph": True,
    "disable-custom-all-reduce": True,
    "mem-fraction-static": 0.3,
    "max-total-tokens": 262144,
    "max-running-requests": 64,
    "random-seed": 1,
}
ENVIRONMENT = {"SGLANG_IS_FLASHINFER_AVAILABLE": "false", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Server:
    """A launch profile: its model's config, ranks, and what differs from ``BASE_ARGS`` and ``ENVIRONMENT``."""

    name: str
    config: dict[str, Any]
    tp: int = 1
    args: dict[str, Any] | None = None
    env: dict[str, str] | None = None


def prepare(*, flashinfer: bool = False) -> None:
    """Unpack the archive into an environment that falls back to this interpreter's packages.

    Args:
        flashinfer: the real one instead of the stand-in.
    """
    if LAB:
        HOME.mkdir(parents=True, exist_ok=True)
        return
    if not PYTHON.exists():
        venv.create(HOME / "venv", symlinks=True)
        (site,) = (HOME / "venv/lib").glob("python*/site-packages")
        with tarfile.open(SITE) as archive:
            archive.extractall(site, filter="data")
        parent = [path for path in sys.path if path.endswith("site-packages")]
        (site / "machine.pth").write_text("\n".join(parent) + "\n")  # after its own, so that the archive's come first
    (site,) = (HOME / "venv/lib").glob("python*/site-packages")
    shutil.copytree(HERE / "standins", site, dirs_exist_ok=True)
    _tools(site)
    if flashinfer:
        shutil.rmtree(site / "flashinfer")
        with tarfile.open(FLASHINFER) as archive:
            archive.extractall(site, filter="data")
    for hooks in ("naive_capture.py", "switch_interval.py"):
        shutil.copy(HERE / hooks, site)
    if os.geteuid() == 0:
        subprocess.run(["mount", "-o", "remount,size=96G", "/dev/shm"], check=False, timeout=10)


def _tools(site: Path) -> None:
    """What looks into processes, beside the interpreter and on PATH: py-spy, and strace if it was carried."""
    for found in site.glob("py_spy-*.data/scripts/py-spy"):
        shutil.copy(found, PYTHON.parent)
        (PYTHON.parent / "py-spy").chmod(0o755)
    if TOOLS.exists():
        with tarfile.open(TOOLS) as archive:
            archive.extractall(HOME, filter="data")
        strace = PYTHON.parent / "strace"
        strace.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={HOME}/tools exec {HOME}/tools/strace "$@"\n')
        strace.chmod(0o755)


def write_inventory(
    servers: list[Server],
    boundaries: list[int],
    final: str = "pre-norm",
    patches: tuple[str, ...] = ("hs-dump",),
    way: dict[str, str] | None = None,
) -> None:
    """inventory.yaml with this machine as its only host, and a model folder a server.

    Args:
        way: to this machine: ``ssh`` and ``ssh_config``; by default its child processes, without SSH.
    """
    profiles = {}
    for server in servers:
        model = HOME / "models" / server.name
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.json").write_text(json.dumps(server.config))
        profiles[server.name] = {
            "host": "here",
            "model": str(model),
            "tp": server.tp,
            "port": "auto",
            "env": {**(rehearsal.environment(server.tp) if LAB else ENVIRONMENT), **(server.env or {})},
            "args": rehearsal.args(server.args or {}) if LAB else {**BASE_ARGS, **(server.args or {})},
            "patches": list(patches),
        }
    here = {"python": str(PYTHON), "state_dir": str(HOME / "state"), "dumps": str(DUMPS), **(way or {"ssh": "local"})}
    whole = {
        "hosts": {"here": here},
        "servers": profiles,
        "patches": {"hs-dump": {"boundaries": boundaries, "final": final}},
        "default": servers[0].name,
    }
    INVENTORY.write_text(json.dumps(whole, indent=1))  # JSON is YAML


def weigh(name: str) -> int:
    """Random weights for a server's model, which lie in memory; returns their bytes."""
    model, target = HOME / "models" / name, RAM / f"{name}.safetensors"
    RAM.mkdir(parents=True, exist_ok=True)
    script = [str(PYTHON), str(HERE / "weigh.py"), str(model / "config.json"), str(target)]
    subprocess.run([*script, *(["cpu"] if LAB else [])], check=True, timeout=150)
    (model / "model.safetensors").unlink(missing_ok=True)
    (model / "model.safetensors").symlink_to(target)
    return target.stat().st_size


def hsops(*words: str, timeout: float = 300.0, ok: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """One command with --json; returns its envelope. Its messages go where ours go."""
    done = subprocess.run(command(*words), stdout=subprocess.PIPE, env=environ(), timeout=timeout, check=False)
    if done.returncode not in ok:
        sys.exit(f"hsops {' '.join(words)}: exit {done.returncode}\n{done.stdout.decode()[-4000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def command(*words: str) -> list[str]:
    """The command line of hsops on this machine's inventory, with --json."""
    return [str(CLIENT), "-m", "hsops", "--inventory", str(INVENTORY), "--json", *words]


def environ() -> dict[str, str]:
    """Of such a command."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "PATH": f"{PYTHON.parent}:{os.environ['PATH']}"}


@contextmanager
def running(servers: list[Server]) -> Iterator[dict[str, int]]:
    """All of them healthy at once: name -> port. They start side by side, and all are stopped afterwards."""
    try:
        with ThreadPoolExecutor(len(servers)) as pool:
            launched = pool.map(
                lambda s: hsops("launch", s.name, "--wait-healthy", "--timeout", "400", timeout=420), servers
            )
            yield {s.name: int(e["data"]["run"]["port"]) for s, e in zip(servers, launched, strict=True)}
    finally:
        for server in servers:
            print(json.dumps(hsops("stop", server.name, ok=(0, 1))["data"]), flush=True)  # its proof
