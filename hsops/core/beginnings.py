"""What ``hsops init`` writes: the commented inventory, a playbook, or an inventory of one host that was looked at."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from hsops.core.command import Command

INVENTORY, PLAYBOOK = "inventory.yaml", "playbooks/extract.yaml"
_PACKAGE = Path(__file__).parent.parent
_LOOK = r"""
cd
for python in "$(command -v python3)" "$(command -v python)" \
  */bin/python .*/bin/python */*/bin/python */.venv/bin/python miniconda3/envs/*/bin/python \
  /opt/*/bin/python /opt/*/*/bin/python /workspace/*/bin/python /workspace/*/*/bin/python; do
  [ -x "$python" ] || continue
  case $python in /*) ;; *) python=$HOME/$python ;; esac
  case $seen in *":$python:"*) continue ;; esac
  seen=$seen:$python:
  found=$(timeout 5 "$python" -I -c 'from importlib.metadata import version; print(version("sglang"))' 2>/dev/null)
  echo "python ${found:--} $python"
done
echo "gpus $(nvidia-smi -L 2>/dev/null | grep -c ^GPU) -"
df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print "shm", $2, $6 }'
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at a host found.

    Args:
        python: an interpreter; of several the first that has SGLang; empty: none at all.
        sglang: the version of its SGLang; empty: none has one.
        others: further interpreters with SGLang.
        gpus: how many ``nvidia-smi`` lists.
        shm_bytes: size of /dev/shm.
    """

    python: str
    sglang: str
    others: tuple[str, ...]
    gpus: int
    shm_bytes: int


def beginning(name: str) -> str:
    """A file that a new user starts from, out of the wheel or the clone: ``INVENTORY`` or ``PLAYBOOK``."""
    shipped = _PACKAGE / "beginnings" / name
    return (shipped if shipped.exists() else _PACKAGE.parent / name).read_text(encoding="utf-8")


def look() -> Command:
    """Looks for interpreters with SGLang where people put them, and for GPUs. ``parse_look`` reads the answer."""
    return Command(("sh", "-c", _LOOK))


def parse_look(text: str) -> Seen:
    """What ``look`` printed."""
    rows = [line.split(" ", 2) for line in text.splitlines() if line.count(" ") >= 2]
    with_sglang = [(path, version) for kind, version, path in rows if kind == "python" and version != "-"]
    without = [path for kind, version, path in rows if kind == "python" and version == "-"]
    numbers = {kind: int(value) for kind, value, _ in rows if kind in ("gpus", "shm") and value.isdigit()}
    path, version = (with_sglang or [(without[0], "")] if without or with_sglang else [("", "")])[0]
    others = tuple(path for path, _ in with_sglang[1:])
    return Seen(path, version, others, numbers.get("gpus", 0), numbers.get("shm", 0) * 1024)


def inventory_of(ssh: str, seen: Seen, *, model: str, ssh_config: str = "") -> str:
    """An inventory of one host and one server.

    Args:
        ssh: as it is typed after ``ssh``.
        seen: what a look found.
        model: a path there or a hub id; empty: a place to fill in.
        ssh_config: an OpenSSH client file; empty: the usual one.
    """
    name = _name(ssh.rpartition("@")[2].split(":")[0], "host")
    served = _name(model.rstrip("/").rpartition("/")[2].lower(), "served")
    also = f"; also: {', '.join(seen.others)}" if seen.others else ""
    found = f"SGLang {seen.sglang}{also}" if seen.sglang else "CHANGE: no interpreter with SGLang was found"
    lines = [
        "# Made by hsops init. Every other key: the commented inventory that `hsops init` writes without a host.",
        "hosts:",
        f"  {name}:",
        f"    ssh: {json.dumps(ssh)}",
        *([f"    ssh_config: {json.dumps(ssh_config)}"] if ssh_config else []),
        f"    python: {json.dumps(seen.python or '/usr/bin/python3')}  # {found}",
        f"    dumps: /dev/shm/sglang_hs  # {seen.shm_bytes / 2**30:,.1f} GiB of RAM; a disk holds more",
        "servers:",
        f"  {served}:",
        f"    host: {name}",
        f"    model: {json.dumps(model or '/models/CHANGE-ME')}  # a path on the host, or a hub id",
        f"    tp: {max(1, seen.gpus)}  # {seen.gpus} GPUs were seen",
        "    port: 30000",
        "    env: {}  # for example NCCL_P2P_LEVEL: SYS; or nccl: pcie-p2p, a profile",
        "    args: {}  # SGLang's own flags without the dashes: mem-fraction-static: 0.88",
        "    patches: [hs-dump]",
        "patches:",
        "  hs-dump:",
        "    boundaries: [3]  # CHANGE: k = the state just before layer k",
        "    final: pre-norm  # CHANGE, by who trains. speculators: pre-norm; SpecForge: both, with three boundaries",
        f"default: {served}",
    ]
    return "\n".join(lines) + "\n"


def _name(text: str, otherwise: str) -> str:
    """Something that an inventory takes as a name, without quotes."""
    plain = re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.")
    return plain if re.match(r"[a-z]", plain) else otherwise
