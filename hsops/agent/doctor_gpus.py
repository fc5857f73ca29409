"""What nvidia-smi tells of GPUs before a launch. It can block for 45 s and more: every call has a deadline."""

import contextlib
import re
import shutil
import subprocess
import time
from typing import Any

from hsops.agent import procs
from hsops.agent.probe_tools import CouldNot, denied

FIELDS = {
    "index": "index",
    "uuid": "uuid",
    "name": "name",
    "driver": "driver_version",
    "capability": "compute_cap",
    "memory": "memory.used",
    "memory_total": "memory.total",
    "util": "utilization.gpu",
    "power": "power.draw",
    "pstate": "pstate",
    "link_gen": "pcie.link.gen.current",
    "link_gen_max": "pcie.link.gen.max",
    "link_width": "pcie.link.width.current",
    "link_width_max": "pcie.link.width.max",
}


def gpus(timeout: float) -> "list[dict[str, str]]":
    """Every GPU, by the names of ``FIELDS``; what nvidia-smi does not know (``[N/A]``) is left out."""
    said = _run([f"--query-gpu={','.join(FIELDS.values())}", "--format=csv,noheader,nounits"], timeout)
    return [row(line, list(FIELDS)) for line in said.splitlines() if line.strip()]


def cuda(timeout: float) -> str:
    """The newest CUDA that the driver serves, as ``13.0``; empty when it does not tell."""
    found = re.search(r"CUDA Version: *(\d+\.\d+)", _run([], timeout))
    return found.group(1) if found else ""


def peers(timeout: float) -> str:
    """``topo -p2p r`` and ``w`` as they are: which GPUs may read, and write, each other's memory."""
    until = time.monotonic() + timeout
    said = _run(["topo", "-p2p", "r"], timeout)[:20000]
    with contextlib.suppress(CouldNot):
        said += _run(["topo", "-p2p", "w"], until - time.monotonic())[:20000]
    return said


def holders(timeout: float) -> "list[dict[str, Any]]":
    """Processes that hold GPU memory: ``pid``, ``mib``, ``uuid`` of the GPU, ``command`` ("" when it is hidden)."""
    said = _run(["--query-compute-apps=pid,used_memory,gpu_uuid", "--format=csv,noheader,nounits"], timeout)
    rows = [row(line, ["pid", "mib", "uuid"]) for line in said.splitlines() if line.strip()]
    return [{**row, "command": procs.title(int(row["pid"]))[:200]} for row in rows if row.get("pid", "").isdigit()]


def row(line: str, names: "list[str]") -> "dict[str, str]":
    """One line of CSV; what nvidia-smi does not know (``[N/A]``, ``ERR!``) is left out."""
    words = [word.strip() for word in line.split(",")]
    return {
        name: word
        for name, word in zip(names, words, strict=False)
        if word and not word.startswith("[") and word != "ERR!"
    }


def _run(words: "list[str]", timeout: float) -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise CouldNot("not-found", "no nvidia-smi on PATH")
    pipe = subprocess.PIPE
    child = subprocess.Popen([tool, *words], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        out, err = child.communicate(timeout=max(timeout, 0.0))
    except subprocess.TimeoutExpired as error:
        child.kill()  # and no wait, as subprocess.run does without limit: stuck in the driver it outlives SIGKILL
        raise CouldNot("timed-out", f"nvidia-smi was not done after {timeout:.3g} s") from error
    said = out.decode("utf-8", "replace")
    if child.returncode != 0:
        lines = (said or err.decode("utf-8", "replace")).strip().splitlines() or ["no output"]
        raise CouldNot("not-permitted" if denied(lines) else "failed", f"nvidia-smi: {lines[0][:200]}")
    return said
