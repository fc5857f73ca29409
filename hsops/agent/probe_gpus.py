"""GPUs as nvidia-smi tells them, who holds their memory, and NCCL's own view of its ranks. Each with a deadline."""

import contextlib
import shutil
import socket
import subprocess
import time
from typing import Any

from hsops.agent.probe_tools import CouldNot, denied

_FIGURES = ("index", "util", "memory", "memory_total", "power", "power_limit")
_FIELDS = "index,utilization.gpu,memory.used,memory.total,power.draw,power.limit"
_MORE = ",clocks.sm,compute_cap,driver_version,pci.bus_id,name"  # compute_cap: drivers since 470
_APPS = "pid,used_memory,gpu_bus_id,process_name"
_RAS_PORT = 28028
_RAS_LONGEST = 64 << 10


def gpus(timeout: float) -> "dict[str, list[dict[str, Any]]]":
    """``gpus``: figures of each; ``gpu_apps``: who holds their memory, none where the driver hides it.

    Raises:
        CouldNot: no nvidia-smi here, or it did not answer in time (it can block for 45 s when the firmware is gone).
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise CouldNot("not-found", "no nvidia-smi on PATH")
    until = time.monotonic() + timeout
    try:
        lines = _ask(tool, f"--query-gpu={_FIELDS}{_MORE}", until)
    except CouldNot as error:
        if "not a valid field" not in str(error):
            raise
        lines = _ask(tool, f"--query-gpu={_FIELDS}", until)
    found, apps = [parse_gpu(line) for line in lines], []
    with contextlib.suppress(CouldNot):
        apps = [app for line in _ask(tool, f"--query-compute-apps={_APPS}", until) if (app := parse_app(line, found))]
    return {"gpus": found, "gpu_apps": apps}


def parse_gpu(line: str) -> "dict[str, Any]":
    """One line of nvidia-smi's CSV without units; what it does not know is left out. MiB, W, percent, MHz.

    Drivers say ``[Not Supported]``, ``[N/A]``, ``N/A``, ``[Unknown Error]`` or ``[GPU requires reset]`` for that.
    """
    words = [word.strip() for word in line.split(",", 10)]
    found: dict[str, Any] = {}
    for name, value in zip((*_FIGURES, "clock", "compute_cap"), words, strict=False):
        with contextlib.suppress(ValueError):
            found[name] = float(value)
    return found | dict(zip(("driver", "bus", "name"), words[8:], strict=False))


def parse_app(line: str, gpus: "list[dict[str, Any]]") -> "dict[str, Any] | None":
    """One line of the processes that compute; None for a message (``No running processes found``)."""
    words = [word.strip() for word in line.split(",", 3)]
    if len(words) < 4 or not words[0].isdigit():
        return None
    memory = float(words[1]) if words[1].isdigit() else None
    index = next((int(gpu["index"]) for gpu in gpus if gpu.get("bus") == words[2]), None)
    return {"pid": int(words[0]), "memory": memory, "gpu": index, "name": words[3]}


def ras(timeout: float) -> str:
    """What NCCL 2.24 and later say of their communicators: rank 0's process listens on loopback.

    Raises:
        CouldNot: nobody listens there, or it said nothing in time.
    """
    said, until = b"", time.monotonic() + timeout
    try:
        with socket.create_connection(("127.0.0.1", _RAS_PORT), 0.5) as link:
            link.sendall(b"verbose status\n")
            while (left := until - time.monotonic()) > 0 and len(said) < _RAS_LONGEST:
                link.settimeout(left)
                part = link.recv(1 << 16)
                if not part:
                    break
                said += part
    except ConnectionRefusedError as error:
        raise CouldNot("not-found", "no NCCL answers on port 28028") from error
    except OSError as error:
        if not said:
            raise CouldNot("timed-out", f"NCCL's port 28028: {error}") from error
    return said.decode("utf-8", "replace")


def _ask(tool: str, query: str, until: float) -> "list[str]":
    argv = [tool, query, "--format=csv,noheader,nounits"]
    left = max(0.1, until - time.monotonic())
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=left, check=False)
    except subprocess.TimeoutExpired as error:
        raise CouldNot("timed-out", "nvidia-smi was not done in time") from error
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    if done.returncode != 0:
        said = (lines or done.stderr.decode("utf-8", "replace").splitlines() or ["no output"])[0]
        raise CouldNot("not-permitted" if denied([said]) else "failed", f"nvidia-smi: {said[:200]}")
    return [line for line in lines if line.strip()]
