"""The verb ``doctor``: what a host is and has. Each look runs beside the others and has a deadline of its own.

A look that hangs (nvidia-smi without its firmware, a dead network file system) is given up and named.
"""

import glob
import importlib.util
import json
import os
import re
import resource
import shutil
import threading
import time
from collections.abc import Callable
from typing import Any

from hsops.agent import aside, doctor_gpus, doctor_pci, facts, orphans, probe_host, procs, slurm
from hsops.agent.probe_tools import CouldNot, is_root
from hsops.agent.rundir import all_runs, runs_folder

LOOK_S = 9.0
_TOOL_SHARE = 0.9  # of it, for nvidia-smi: it is ended before its look is given up
_SHARDS = "model.safetensors.index.json"


def doctor(params: "dict[str, Any]") -> "dict[str, Any]":
    """Everything a launch will stand on.

    ``params``: ``dumps``, a folder; ``servers``, [{``name``, ``model``, ``port`` or null}]; ``slurm``: folders of its
    commands ("": on the PATH), and ``sinfo``: what that is asked with; optional ``look_s``.

    Returns {look: its result, or null} and ``could_not`` [{``look``, ``why``, ``message``}].
    """
    seconds = float(params.get("look_s") or LOOK_S)
    tool = seconds * _TOOL_SHARE
    models = {str(server["model"]) for server in params.get("servers", ())}
    looks: dict[str, Callable[[], Any]] = {
        "hello": lambda: facts.hello({}),  # without the dump folder, which may hang: that is a look of its own
        "torch": torch,
        "limits": limits,
        "tools": lambda: {name: shutil.which(name) for name in ("strace", "nvidia-smi")},
        "kernel": kernel,
        "memory": probe_host.memory,
        "state": lambda: probe_host.mount(params["state_dir"]),
        "aside": lambda: put_aside(params["dumps"]),
        "messages": probe_host.kernel_log,
        "pci": doctor_pci.look,
        "gpus": lambda: doctor_gpus.gpus(tool),
        "cuda": lambda: doctor_gpus.cuda(tool),
        "peers": lambda: doctor_gpus.peers(tool),
        "holders": lambda: doctor_gpus.holders(tool),
        "processes": lambda: processes(params),
        "orphans": lambda: orphans.orphans(params)["orphans"],
        "ports": lambda: {str(s["port"]): procs.listener(int(s["port"])) for s in params["servers"] if s.get("port")},
        **{f"model {model}": lambda model=model: weights(model) for model in models},  # type: ignore[misc]
        **{
            f"slurm {where}": lambda where=where: slurm.survey(where, params["sinfo"], tool)  # type: ignore[misc]
            for where in params.get("slurm", ())
        },
        **{f"folder {path}": lambda path=path: probe_host.folder(path) for path in folders(params)},  # type: ignore[misc]
    }
    return _all(looks, seconds)


def _all(looks: "dict[str, Callable[[], Any]]", seconds: float) -> "dict[str, Any]":
    """Daemon threads: one that hangs must not keep this process from its end."""
    found: dict[str, Any] = dict.fromkeys(looks)
    could_not: dict[str, dict[str, str]] = {}

    def one(name: str, look: "Callable[[], Any]") -> None:
        try:
            found[name] = look()
        except CouldNot as reason:
            could_not[name] = {"why": reason.why, "message": reason.message}
        except PermissionError as error:
            could_not[name] = {"why": "not-permitted", "message": f"{error.filename or error}: {error.strerror}"}
        except (OSError, ValueError, KeyError, TypeError) as error:
            could_not[name] = {"why": "failed", "message": f"{type(error).__name__}: {error}"[:200]}

    threads = {name: threading.Thread(target=one, args=(name, looks[name]), daemon=True) for name in looks}
    for thread in threads.values():
        thread.start()
    until = time.monotonic() + seconds
    for name, thread in threads.items():
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            could_not[name] = {"why": "timed-out", "message": f"no answer within {seconds:g} s"}
    told = [{"look": name, **reason} for name, reason in dict(could_not).items()]  # a late look may still write
    return {"time": time.time(), **dict(found), "could_not": told}


def torch() -> "dict[str, str] | None":
    """torch's version and the CUDA it was built for ("" for a CPU build), without importing it; None: not installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return None
    with open(os.path.join(os.path.dirname(spec.origin), "version.py"), encoding="utf-8") as file:
        text = file.read()
    found = {name: re.search(rf"^{name}\b[^=]*= '([^']*)'", text, re.MULTILINE) for name in ("__version__", "cuda")}
    return {name.strip("_"): match.group(1) if match else "" for name, match in found.items()}


def limits() -> "dict[str, int]":
    """Limits that a server started from here inherits; -1: none."""
    wanted = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK, "nproc": resource.RLIMIT_NPROC}
    found = {}
    for name, which in wanted.items():
        found[f"{name}_soft"], found[f"{name}_hard"] = resource.getrlimit(which)
    return found


def kernel() -> "dict[str, Any]":
    """Who may look into processes, and how the kernel was started."""
    return {
        "root": is_root(),
        "ptrace_scope": _number("/proc/sys/kernel/yama/ptrace_scope"),
        "command_line": _text("/proc/cmdline"),
        "hmm": _text("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm"),
        "aspm": _text("/sys/module/pcie_aspm/parameters/policy"),
        "memory_limit": _number("/sys/fs/cgroup/memory.max"),
        "container": os.path.exists("/.dockerenv") or "container=" in _text("/proc/1/environ"),
    }


def folders(params: "dict[str, Any]") -> "list[str]":
    """The folders whose room matters: dumps, shared memory, hsops' own, temporary files, caches of compiled kernels."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    caches = [os.environ.get("TRITON_CACHE_DIR") or "~/.triton", os.environ.get("FLASHINFER_WORKSPACE_BASE") or cache]
    wanted = [params["dumps"], "/dev/shm", params["state_dir"], "/tmp", *caches]  # noqa: S108 - looked at only
    return list(dict.fromkeys(path for path in wanted if path))


def put_aside(dumps: str) -> "dict[str, int]":
    """Folders of dumps, each with the number of those that an evict which was killed left under another name."""
    found = {path: aside.left(path, restore=False) for path in glob.glob(os.path.expanduser(f"{dumps}/*/"))}
    return {path: count for path, count in found.items() if count}


def weights(model: str) -> "dict[str, Any]":
    """A model's folder: bytes of its weights, and what is missing of the files that its index names."""
    path = os.path.expanduser(model)
    found: dict[str, Any] = {"local": model.startswith(("/", "~", ".")), "exists": os.path.exists(path)}
    if not (found["local"] and os.path.isdir(path)):
        return found
    files = glob.glob(os.path.join(path, "*.safetensors"))
    found |= {"config": os.path.exists(os.path.join(path, "config.json")), "bytes": sum(map(os.path.getsize, files))}
    if os.path.exists(os.path.join(path, _SHARDS)):
        with open(os.path.join(path, _SHARDS), encoding="utf-8") as file:
            wanted = set(json.load(file)["weight_map"].values())
        found["missing"] = sorted(wanted - {os.path.basename(name) for name in files})
        found["shards"] = len(wanted)
    return found


def processes(params: "dict[str, Any]") -> "list[dict[str, Any]]":
    """SGLang's processes, each with the run of hsops that it belongs to, or none."""
    snapshot = procs.Snapshot()
    owner: dict[int, str] = {}
    for run in all_runs(runs_folder(params)):
        for pid in snapshot.shows(run.mark(), os.path.realpath(run.log)):
            owner[pid] = run.id
    found = []
    for pid, proc in snapshot.everyone.items():
        words = procs.title(pid)
        if not proc.zombie and ("sglang::" in words or "sglang.launch_server" in words) and "run-exec" not in words:
            found.append({"pid": pid, "ppid": proc.ppid, "command": words[:200], "run": owner.get(pid)})
    return found


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip("\n\0")
    except OSError:
        return ""


def _number(path: str) -> "int | None":
    text = _text(path)
    return int(text) if text.lstrip("-").isdigit() else None
