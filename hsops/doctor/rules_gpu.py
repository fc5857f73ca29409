"""Rules about GPUs, their driver, and the PCI bus between them. Pure.

Sources: what people who run 8x RTX PRO 6000 found (voipmonitor/rtx6kpro), NVIDIA's CUDA compatibility guide for driver
versions, the PCI Express specification for ACS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hsops.core.versions import numbers
from hsops.doctor.findings import Facts, Finding

_HELD_MIB = 1024  # less is a desktop, a monitor or a context
_CUDA_FOR = {"12.0": (12, 8), "10.0": (12, 8), "9.0": (11, 8)}  # compute capability -> first CUDA with kernels for it


def present(facts: Facts) -> Iterator[Finding]:
    """Are there GPUs, enough of them, and does nvidia-smi answer?"""
    blind = facts.blind("gpus")
    if blind and blind["why"] == "timed-out":
        yield Finding(
            "blocker",
            "gpu",
            "nvidia-smi does not answer",
            "the firmware of a GPU may be gone (Xid 119, 120): CUDA will hang as well",
            "look for Xid in the kernel log; reset that GPU or reboot the host",
        )
    elif blind and blind["why"] != "not-found":
        yield Finding("warning", "gpu", f"no look at the GPUs: {blind['message']}", "", "run nvidia-smi on the host")
    here = [server for server in facts.servers if not server.job]
    most = max((server.tp for server in here), default=0)
    if facts.gpus and len(facts.gpus) < most:
        named = ", ".join(server.name for server in here if server.tp > len(facts.gpus))
        yield Finding(
            "blocker",
            "gpu",
            f"{len(facts.gpus)} GPUs, and {named} wants tp {most}",
            "",
            "servers.<name>.tp in inventory.yaml",
        )


def driver(facts: Facts) -> Iterator[Finding]:
    """The driver and torch's CUDA must fit each other, and the GPUs."""
    torch, served = facts.look("torch"), numbers(facts.look("cuda") or "")
    built = numbers(torch["cuda"]) if torch else ()
    if facts.gpus and torch and not built:
        yield Finding(
            "blocker",
            "gpu",
            f"torch {torch['version']} is a CPU build",
            "SGLang would not use the GPUs",
            "install torch with CUDA",
        )
    if built and served and built[0] > served[0]:
        yield Finding(
            "blocker",
            "gpu",
            f"torch is built for CUDA {torch['cuda']}, the driver serves {facts.look('cuda')}",
            "CUDA will not start: a driver serves its own major version and older ones",
            f"a newer driver, or torch for CUDA {served[0]}.x",
        )
    for capability in sorted({gpu["capability"] for gpu in facts.gpus if "capability" in gpu}):
        least = _CUDA_FOR.get(capability)
        if built and least and built < least:
            yield Finding(
                "blocker",
                "gpu",
                f"torch is built for CUDA {torch['cuda']}, compute capability {capability} needs {least[0]}.{least[1]}",
                "'no kernel image is available' at the first kernel",
                "install a torch for a newer CUDA",
            )


def memory_held(facts: Facts) -> Iterator[Finding]:
    """Whose is the memory that is in use?"""
    index = {gpu.get("uuid"): gpu.get("index", "?") for gpu in facts.gpus}
    held = facts.look("holders") or ()
    refused = {orphan["pid"]: orphan["refused"] for orphan in facts.look("orphans") or ()}
    by_pid: dict[str, list[Mapping[str, str]]] = {}
    for entry in held:
        if _number(entry, "mib") >= _HELD_MIB and not facts.owners.get(int(entry["pid"])):
            by_pid.setdefault(entry["pid"], []).append(entry)
    for pid, entries in by_pid.items():
        gib = sum(_number(entry, "mib") for entry in entries) / 1024
        on = ", ".join(index.get(entry.get("uuid"), "?") for entry in entries)
        who = f" ({entries[0]['command'][:60]})" if entries[0]["command"] else ""
        yield Finding(
            "blocker",
            "gpu",
            f"pid {pid}{who} holds {gib:.0f} GiB on GPU {on}, no run of hsops owns it",
            "a server that wants most of the memory will not fit beside it",
            refused.get(int(pid)) or f"hsops stop --orphan {pid} shows what it is, asks, and ends it",
        )
    seen = {entry.get("uuid") for entry in held}
    for gpu in facts.gpus:
        used = _number(gpu, "memory")
        if used >= _HELD_MIB and gpu.get("uuid") not in seen and facts.look("holders") is not None:
            yield Finding(
                "warning",
                "gpu",
                f"GPU {gpu.get('index')} has {used / 1024:.0f} GiB in use, and no process that can be seen",
                "a process of another container or user, or one that is dying",
                "nvidia-smi as root, outside the container; fuser -v /dev/nvidia*",
            )


def wedged(facts: Facts) -> Iterator[Finding]:
    """All its time in a kernel, and nobody there."""
    busy = {entry.get("uuid") for entry in facts.look("holders") or ()}
    stuck = [gpu.get("index", "?") for gpu in facts.gpus if _number(gpu, "util") >= 95 and gpu.get("uuid") not in busy]
    if stuck and facts.look("holders") is not None:
        yield Finding(
            "blocker",
            "gpu",
            f"GPU {', '.join(stuck)} at 100 % without a process",
            "a kernel that outlived its process: nothing else will run there",
            "nvidia-smi --gpu-reset -i N, or a reboot",
        )


def faults(facts: Facts) -> Iterator[Finding]:
    """Xid lines of the kernel's log."""
    lines = (facts.look("messages") or {}).get("xid", ())
    if lines:
        yield Finding(
            "warning",
            "gpu",
            f"{len(lines)} GPU faults in the kernel's log, the last: {lines[-1][:120]}",
            "a GPU that faulted may do so again",
            "look the number up in NVIDIA's list of Xid errors",
        )


def link(facts: Facts) -> Iterator[Finding]:
    """Fewer lanes than there are. The generation falls at idle to save power, so it counts only at full clocks."""
    narrow = [gpu for gpu in facts.gpus if _less(gpu, "link_width")]
    slow = [gpu for gpu in facts.gpus if gpu.get("pstate") == "P0" and _less(gpu, "link_gen")]
    for gpus, what in ((narrow, "link_width"), (slow, "link_gen")):
        if gpus:
            shown, unit = (
                ", ".join(gpu.get("index", "?") for gpu in gpus),
                "lanes" if what == "link_width" else "generation",
            )
            yield Finding(
                "warning",
                "pci",
                f"GPU {shown}: PCIe {unit} {gpus[0][what]} of {gpus[0][f'{what}_max']}",
                "collectives without NVLink run at the pace of the slowest link",
                "reseat the card or riser; the slot's setting in the BIOS",
            )


def power_saving(facts: Facts) -> Iterator[Finding]:
    """Links that sleep. ``[default]`` leaves it to the BIOS, of which nobody tells here."""
    policy = re.search(r"\[(powersave|powersupersave)\]", (facts.look("kernel") or {}).get("aspm", ""))
    if facts.gpus and policy:
        yield Finding(
            "warning",
            "pci",
            f"PCIe power saving is on (ASPM policy {policy[1]})",
            "GPUs were seen to leave the bus (Xid 79) when their link woke up",
            "echo performance > /sys/module/pcie_aspm/parameters/policy, or pcie_aspm=off on the kernel's command line",
        )


def peers(facts: Facts) -> Iterator[Finding]:
    """What may get in the way of GPUs that read each other's memory."""
    if len(facts.gpus) < 2:
        return
    table = facts.look("peers") or ""
    bad = sorted({word for line in table.splitlines() if line.strip().startswith("GPU") for word in line.split()[1:]
                  if word in ("NS", "CNS", "GNS", "TNS", "DR")})  # fmt: skip
    if bad:
        yield Finding(
            "warning",
            "pci",
            f"the driver offers no peer-to-peer between some GPUs (nvidia-smi topo -p2p r, w: {', '.join(bad)})",
            "NCCL goes through the host's memory there; a forced P2P level would hang",
            "nccl: pcie-dram",
        )
    redirecting = (facts.look("pci") or {}).get("redirecting", ())
    if redirecting:
        yield Finding(
            "warning",
            "pci",
            f"ACS redirects peer-to-peer traffic on {len(redirecting)} bridges ({', '.join(redirecting[:4])})",
            "the first collective may hang, or be slow",
            "switch ACS off in the BIOS or with setpci, or nccl: pcie-dram",
        )
    line = (facts.look("kernel") or {}).get("command_line", "")
    if any(word in line.split() for word in ("amd_iommu=on", "intel_iommu=on", "iommu=force", "iommu.passthrough=0")):
        yield Finding(
            "warning",
            "pci",
            "the IOMMU translates device traffic (kernel command line)",
            "peer-to-peer between GPUs can hang or give wrong data",
            "iommu=pt on the kernel's command line, or nccl: pcie-dram",
        )
    if (facts.look("kernel") or {}).get("hmm") == "N":
        yield Finding(
            "warning",
            "pci",
            "nvidia_uvm runs with HMM",
            "on hosts without NVLink it was seen to stall P2P",
            "options nvidia_uvm uvm_disable_hmm=1 in /etc/modprobe.d, then reload the module",
        )


def _number(entry: Mapping[str, str], name: str) -> float:
    """0 for what nvidia-smi does not know, in whatever words it says so."""
    try:
        return float(entry.get(name, 0))
    except ValueError:
        return 0.0


def _less(gpu: Mapping[str, str], what: str) -> bool:
    now, most = gpu.get(what, ""), gpu.get(f"{what}_max", "")
    return now.isdigit() and most.isdigit() and int(now) < int(most)
