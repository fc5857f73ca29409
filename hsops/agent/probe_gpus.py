"""GPUs as nvidia-smi tells them, who holds their memory, and NCCL's own view of its ranks. Each with a deadline."""

import contextlib
import shutil
import socket
import subprocess
import time
from typing import Any

from hsops.agent import procs
from hsops.agent.probe_tools import CouldNot, denied

_FIGURES = ("index", "util", "memory", "memory_total", "power", "power_limit")
_FIELDS = "index,utilization.gpu,memory.used,memory.total,power.draw,power.limit"
_MORE = ",clocks.sm,compute_cap,driver_version,pci.bus_id,name"  # compute_cap: drivers since 470
_APPS = "pid,used_memory,gpu_bus_id,process_name"
_RAS_LONGEST = 64 << 10
_ACCEPT_S = 0.2  # a stopped rank does not; another one may


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


def ras(address: str, pids: "list[int]", timeout: float) -> str:
    """What NCCL 2.24 and later say of the communicators of ``pids``, the processes of one server.

    NCCL_RAS_ADDR is where each rank listens, by default at one port for all servers of a user, which they share
    (SO_REUSEPORT): the kernel picks who of them is connected. It is asked only when it was seen to be one of ``pids``.

    Raises:
        CouldNot: none of them listens there, or they said nothing in time.
    """
    host, _, word = address.rpartition(":")
    port, until = int(word), time.monotonic() + timeout
    if not (procs.listener(port, pids) or {}).get("pid"):
        raise _no_ras(port)
    try:
        while (left := until - time.monotonic()) > 0:
            with socket.create_connection((host.strip("[]"), port), left) as link:
                ours = procs.accepted(port, link.getsockname()[1], pids, min(left, _ACCEPT_S))
                if ours and (said := _say(link, until)):
                    return said
    except OSError as error:
        raise CouldNot("timed-out", f"NCCL's port {port}: {error}") from error
    raise CouldNot("timed-out", f"no rank of this server answered on NCCL's port {port}")


def _no_ras(port: int) -> CouldNot:
    holder = procs.listener(port)
    if not holder:
        return CouldNot("not-found", f"no NCCL answers on port {port}")
    pid = holder["pid"]
    if not pid:
        return CouldNot("not-permitted", f"port {port} is somebody's whose files may not be seen")
    return CouldNot("not-found", f"port {port} is pid {pid}'s, which is not of this server")


def _say(link: socket.socket, until: float) -> str:
    """Its whole answer, or what came of it in time."""
    said = b""
    link.sendall(b"verbose status\n")
    with contextlib.suppress(OSError):  # cut short: that is judged by what was said
        while (left := until - time.monotonic()) > 0 and len(said) < _RAS_LONGEST:
            link.settimeout(left)
            part = link.recv(1 << 16)
            if not part:
                break
            said += part
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
