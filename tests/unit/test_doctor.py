"""The doctor's rules: each fault of a host gives its finding, and a good host gives none."""

from __future__ import annotations

import copy
import struct
from typing import Any

import pytest

from hsops.agent import doctor_gpus, doctor_pci
from hsops.doctor import client
from hsops.doctor.examine import judge
from hsops.doctor.findings import Facts, Finding, Wanted
from hsops.render import doctor as render

MODEL = "/models/kimi"
GPU = {
    "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "driver": "580.95.05",
    "capability": "12.0",
    "memory": "3",
    "memory_total": "97887",
    "util": "0",
    "power": "31.2",
    "pstate": "P8",
    "link_gen": "1",
    "link_gen_max": "5",
    "link_width": "16",
    "link_width_max": "16",
}
GIB = 1 << 30


def good() -> dict[str, Any]:
    """A host that nothing is wrong with."""
    folder = {"exists": True, "free": 400 * GIB, "total": 500 * GIB, "writable": True}
    return {
        "hello": {
            "python": "3.12.3",
            "executable": "/v/bin/python",
            "hostname": "box",
            "sglang": {"version": "0.5.9"},
            "packages": {"py-spy": "0.4.1"},
        },
        "torch": {"version": "2.9.1+cu130", "cuda": "13.0"},
        "limits": {"nofile_soft": 1024, "nofile_hard": 1048576, "memlock_soft": -1, "memlock_hard": -1},
        "tools": {"strace": "/usr/bin/strace", "nvidia-smi": "/usr/bin/nvidia-smi"},
        "kernel": {
            "root": True,
            "ptrace_scope": 1,
            "command_line": "ro quiet iommu=pt",
            "hmm": "Y",
            "aspm": "[default] performance powersave powersupersave",
            "memory_limit": None,
        },
        "memory": {"MemTotal": 1000 * GIB, "MemAvailable": 900 * GIB, "oom_kills": 0},
        "messages": {"oom": [], "xid": []},
        "pci": {"gpus": ["0000:01:00.0"], "redirecting": [], "hidden": 0},
        "gpus": [{**GPU, "index": str(i), "uuid": f"GPU-{i}"} for i in range(8)],
        "cuda": "13.0",
        "peers": " \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n\nLegend:\n  NS = Not supported\n",
        "holders": [],
        "processes": [],
        "ports": {"30000": None},
        f"model {MODEL}": {
            "local": True,
            "exists": True,
            "config": True,
            "bytes": 600 * GIB,
            "missing": [],
            "shards": 64,
        },
        "state": {"path": "~/.hsops", "type": "ext4", "source": "box:/home", "options": "rw"},
        "folder /dev/shm/hs": folder,
        "folder /dev/shm": folder,
        "folder ~/.cache": folder,
        "could_not": [],
    }


def blind(look: str, why: str) -> dict[str, Any]:
    """A look that was not possible."""
    return {look: None, "could_not": [{"look": look, "why": why, "message": "it said so"}]}


def examine(changes: dict[str, Any], *, skew: float = 0.1, tp: int = 8, capture: str = "") -> list[Finding]:
    """Findings of the good host with ``changes``, merged a level deep."""
    raw = copy.deepcopy(good())
    for name, value in changes.items():
        raw[name] = {**raw[name], **value} if isinstance(value, dict) and isinstance(raw.get(name), dict) else value
    return judge(Facts(raw, [Wanted("kimi", MODEL, tp, 30000, capture)], "/dev/shm/hs", skew_s=skew))


def gpus(**fields: str) -> dict[str, Any]:
    """The last of two GPUs has other ``fields``."""
    return {"gpus": [{**GPU, "index": "0", "uuid": "GPU-0"}, {**GPU, "index": "1", "uuid": "GPU-1", **fields}]}


def test_a_good_host_gives_no_finding() -> None:
    """Links at their idle generation, a yama scope that root passes, an IOMMU in pass-through: all fine."""
    assert examine({}) == []


@pytest.mark.parametrize(
    "version,capture,said",
    [
        ("0.4.0", "source", "SGLang 0.4.0 cannot be patched"),
        ("0.5.3", "source", "SGLang 0.5.3 cannot be patched"),
        ("0.5.4", "source", ""),
        ("0.5.5", "hook", "SGLang 0.5.5 has no --forward-hooks"),
        ("0.5.6", "hook", ""),
        ("0.4.0", "", ""),
        ("main", "source", ""),
    ],
)
def test_an_sglang_that_deploy_would_refuse_is_a_blocker(version: str, capture: str, said: str) -> None:
    """In deploy's own words, where a server has hs-dump."""
    found = examine({"hello": {"sglang": {"version": version}}}, capture=capture)

    assert [(one.level, one.what) for one in found] == ([("blocker", said)] if said else [])
    assert all(one.fix for one in found)


@pytest.mark.parametrize(
    "changes,level,words",
    [
        ({"hello": {"sglang": {"version": None}}}, "blocker", "/v/bin/python finds no SGLang"),
        ({"torch": None}, "blocker", "finds no torch"),
        ({"torch": {"version": "2.9.1+cpu", "cuda": ""}}, "blocker", "torch 2.9.1+cpu is a CPU build"),
        ({"cuda": "12.8"}, "blocker", "torch is built for CUDA 13.0, the driver serves 12.8"),
        ({"torch": {"version": "2.6.0", "cuda": "12.4"}}, "blocker", "compute capability 12.0 needs 12.8"),
        (blind("gpus", "timed-out"), "blocker", "nvidia-smi does not answer"),
        (blind("gpus", "failed"), "warning", "no look at the GPUs: it said so"),
        (blind("gpus", "not-found"), "note", "no nvidia-smi here"),
        (blind("ports", "timed-out"), "note", "no look at ports: it said so"),
        (gpus(), "blocker", "2 GPUs, and kimi wants tp 8"),
        (
            {"holders": [{"pid": "4121", "mib": "72704", "uuid": "GPU-3", "command": "python train.py"}]},
            "blocker",
            "pid 4121 (python train.py) holds 71 GiB on GPU 3, no run of hsops owns it",
        ),
        (gpus(memory="72704"), "warning", "GPU 1 has 71 GiB in use, and no process that can be seen"),
        (gpus(util="100"), "blocker", "GPU 1 at 100 % without a process"),
        (
            {"messages": {"oom": [], "xid": ["NVRM: Xid (PCI:0000:81:00): 79, GPU has fallen off the bus."]}},
            "warning",
            "Xid",
        ),
        (gpus(link_width="8"), "warning", "GPU 1: PCIe lanes 8 of 16"),
        (gpus(pstate="P0", link_gen="4"), "warning", "GPU 1: PCIe generation 4 of 5"),
        ({"peers": " \tGPU0\tGPU1\n GPU0\tX\tCNS\n GPU1\tCNS\tX\n"}, "warning", "no peer-to-peer between some GPUs"),
        ({"pci": {"redirecting": ["0000:40:01.1"]}}, "warning", "ACS redirects peer-to-peer traffic on 1 bridges"),
        ({"kernel": {"command_line": "ro amd_iommu=on"}}, "warning", "the IOMMU translates"),
        ({"kernel": {"hmm": "N"}}, "warning", "nvidia_uvm runs with HMM"),
        ({"kernel": {"aspm": "default performance [powersave] powersupersave"}}, "warning", "ASPM policy powersave"),
        ({f"model {MODEL}": {"exists": False}}, "blocker", "kimi: there is no model at /models/kimi"),
        (
            {f"model {MODEL}": {"missing": ["model-00007-of-00064.safetensors"]}},
            "blocker",
            "1 of 64 weight files are missing",
        ),
        ({f"model {MODEL}": {"config": False}}, "blocker", "no config.json"),
        (
            {"ports": {"30000": {"pid": 77, "command": "nginx"}}},
            "blocker",
            "kimi: port 30000 is taken by pid 77 (nginx)",
        ),
        ({"ports": {"30000": {"pid": None, "command": None}}}, "blocker", "taken by somebody who hides"),
        ({"processes": [{"pid": 9, "command": "sglang::scheduler_TP0", "run": None}]}, "warning", "belong to no run"),
        ({"folder /dev/shm/hs": {"writable": False}}, "blocker", "dumps cannot be written to /dev/shm/hs"),
        ({"folder /dev/shm": {"total": 64 << 20}}, "blocker", "/dev/shm has 64 MiB in all"),
        ({"folder ~/.cache": {"free": 2 * GIB}}, "warning", "~/.cache has 2 GiB free: compiled kernels"),
        ({"folder /dev/shm/hs": {"free": 1 << 20}}, "warning", "/dev/shm/hs has 1 MiB free"),
        (
            {"aside": {"/dev/shm/hs/kimi/": 3}},
            "warning",
            "3 files of /dev/shm/hs/kimi/ have another name since a fetch",
        ),
        ({"state": {"type": "nfs4"}}, "warning", "~/.hsops (state_dir) lies on nfs4 (box:/home): a deploy that stands"),
        ({"state": {"type": "nfs", "options": "rw,nolock"}}, "warning", "mounted with nolock, its locks hold on one"),
        ({"state": {"type": "nfs", "options": "rw,local_lock=flock"}}, "warning", "mounted with local_lock=flock"),
        ({"state": {"type": "fuse.sshfs"}}, "warning", "lies on fuse.sshfs"),
        ({"state": {"type": "vfat"}}, "blocker", "lies on vfat: it has no hard links"),
        ({"state": {"type": "fuse.gcsfuse"}}, "blocker", "lies on fuse.gcsfuse: it has no hard links"),
        ({"limits": {"nofile_hard": 4096}}, "warning", "at most 4,096 open files"),
        ({"limits": {"memlock_soft": 65536}}, "warning", "at most 64 KiB of locked memory"),
        ({"kernel": {"memory_limit": 64 * GIB}}, "warning", "may use 64 GiB of the host's 1,000 GiB"),
        ({"memory": {"oom_kills": 3}}, "warning", "the OOM killer struck 3 times"),
        ({"kernel": {"root": False}}, "warning", "kernel.yama.ptrace_scope is 1"),
        ({"hello": {"packages": {}}, "tools": {"strace": None}}, "warning", "py-spy and strace not found"),
    ],
)
def test_one_fault_one_finding(changes: dict[str, Any], level: str, words: str) -> None:
    """And nothing beside it, apart from what two GPUs are too few for."""
    (found,) = examine(changes, tp=8 if "wants tp" in words or "gpus" not in changes else 2)

    line = next(iter(render.finding_lines("box", [found])))
    assert found.level == level
    assert words in f"{found.what}: {found.why}", found
    assert line.startswith("box  ")


def test_what_nvidia_smi_does_not_know_is_no_finding() -> None:
    """Fields that are left out, words where a number was, a holder without its GPU: no traceback, nothing made up."""
    odd = [{"name": "NVIDIA H200", "memory": "Unknown Error", "util": "?"}]

    found = examine({"gpus": odd, "holders": [{"pid": "7", "command": ""}]}, tp=1)

    assert found == []
    raw = {**good(), "gpus": [{**odd[0], "memory_total": "Unknown Error"}]}
    assert "1x H200 · " in render.host_line("box", Facts(raw, [], "/dev/shm/hs"), 0.01)


@pytest.mark.parametrize("skew,said", [(3600.0, "3,600 s ahead of ours"), (-60.0, "60 s behind ours"), (2.0, "")])
def test_clocks(skew: float, said: str) -> None:
    """A few seconds are the network's."""
    found = examine({}, skew=skew)

    assert [said in one.what for one in found] == ([True] if said else [])


def test_what_a_run_owns_is_no_stranger() -> None:
    """The memory, the port and the processes of a run that is alive."""
    own = {"pid": 50, "command": "sglang::scheduler_TP0", "run": "1129-174200-3f9c"}

    found = examine(
        {
            "processes": [own],
            "ports": {"30000": {"pid": 50, "command": "x"}},
            "holders": [{"pid": "50", "mib": "70000", "uuid": "GPU-0", "command": "sglang::scheduler_TP0"}],
        }
    )

    assert found == []


@pytest.mark.parametrize("text,what", [("", "no ssh"), ("OpenSSH_7.4p1", "is old"), ("OpenSSH_9.2p1 Debian-2", "")])
def test_the_client(text: str, what: str) -> None:
    """This machine's SSH."""
    found = list(client.judge({"ssh": text}))

    assert [what in one.what for one in found] == ([True] if what else [])


def test_a_line_of_nvidia_smi_with_gaps() -> None:
    """What it does not know is left out, not zero."""
    told = doctor_gpus.row("0, GPU-a, NVIDIA H200, 580.95, 9.0, [N/A], 143771, 0", list(doctor_gpus.FIELDS))

    assert "memory" not in told and told["memory_total"] == "143771" and told["capability"] == "9.0"


def bridge(*capabilities: tuple[int, bytes]) -> bytes:
    """A configuration space of 4 KiB with extended capabilities one after the other."""
    config, at = bytearray(4096), 0x100
    for i, (number, body) in enumerate(capabilities):
        after = at + 4 + len(body) if i + 1 < len(capabilities) else 0
        config[at : at + 4] = struct.pack("<I", number | 1 << 16 | after << 20)
        config[at + 4 : at + 4 + len(body)] = body
        at += 4 + len(body)
    return bytes(config)


@pytest.mark.parametrize(
    "config,redirects",
    [
        (bridge((0x0001, bytes(8)), (0x000D, struct.pack("<HH", 0x1F, 0b11101))), True),
        (bridge((0x0001, bytes(8)), (0x000D, struct.pack("<HH", 0x1F, 0b10001))), False),
        (bridge((0x000D, struct.pack("<HH", 0x1F, 0b1000))), True),
        (bridge((0x0001, bytes(8))), False),
        (bytes(64), False),
        (b"", False),
        (bytes(0x100) + struct.pack("<I", 1 | 0x100 << 20) + bytes(3836), False),  # points at itself
    ],
)
def test_acs_in_a_configuration_space(config: bytes, redirects: bool) -> None:
    """The list of extended capabilities is walked, whatever it holds; a user who is not root sees 64 bytes."""
    assert doctor_pci.redirects(config) is redirects
