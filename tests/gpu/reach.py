"""The way to this machine as a host: its own OpenSSH server on loopback, or, where none is to be had, child processes.

The server is the machine's own, or the one of ``.gpu/ssh.tar.xz`` (bundle.py) with the Python packages that hsops needs
for SSH. As root it needs a user ``sshd``: the one line outside ``HOME``, in /etc/passwd.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from hsops.core.errors import HsopsError
from tests.gpu import machine

ARCHIVE = machine.REPOSITORY / ".gpu/ssh.tar.xz"
ALIAS = "gpu"
KEPT = ("PATH", "LD_LIBRARY_PATH")  # of the image: a login on it has neither the driver's libraries nor its tools
FAMILIES = ("CUDA_", "NVIDIA_", "NCCL_", "TORCH_", "NVSHMEM_")
USER = "sshd:x:74:65534:sshd:/run/sshd:/usr/sbin/nologin\n"


def way() -> dict[str, str]:
    """Of an inventory's host."""
    try:
        _unpack()
        from hsops.lab import sshd

        folder = machine.HOME / "sshd"
        sshd.start(folder, alias=ALIAS, extra=(_environment(),))
        command = [*_ssh(folder), ALIAS, "true"]
        subprocess.run(command, check=True, timeout=20, env=machine.environ(), capture_output=True)
        code = "import paramiko, fabric, cryptography"
        subprocess.run([machine.CLIENT, "-c", code], check=True, timeout=60, capture_output=True)
    except (HsopsError, OSError, ImportError, subprocess.SubprocessError) as error:
        why = getattr(error, "stderr", b"") or b""
        print(f"no SSH here, so child processes: {error} {why.decode(errors='replace')[-500:]}", flush=True)
        return {"ssh": "local"}
    return {"ssh": ALIAS, "ssh_config": str(folder / "ssh_config")}


def close() -> None:
    """End the server, if there is one."""
    if (machine.HOME / "sshd").exists():
        from hsops.lab import sshd

        sshd.stop(machine.HOME / "sshd")


def _ssh(folder: Path) -> list[str]:
    return ["ssh", "-o", "BatchMode=yes", "-F", str(folder / "ssh_config")]


def _unpack() -> None:
    """The carried one, where there is one; hsops.lab needs packages of the archive in this process too."""
    (site,) = (machine.PYTHON.parents[1] / "lib").glob("python*/site-packages")
    if not machine.LAB:
        sys.path.append(str(site))
    os.environ["PATH"] = f"{machine.PYTHON.parent}:{os.environ['PATH']}"
    if machine.LAB or not ARCHIVE.exists():
        return
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(machine.HOME / "ssh", filter="data")
    (site / "ssh.pth").write_text(f"{machine.HOME}/ssh/site\n")
    os.environ["PATH"] = f"{machine.HOME}/ssh/bin:{os.environ['PATH']}"
    passwd = Path("/etc/passwd")
    if os.geteuid() == 0 and "\nsshd:" not in passwd.read_text():
        with passwd.open("a") as file:
            file.write(USER)


def _environment() -> str:
    """A line of sshd_config; the first ``SetEnv`` is the only one that counts, and SHLVL is the lab's."""
    kept = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith(FAMILIES)}
    words = (f'"{name}={value}"' for name, value in kept.items() if '"' not in value and "\n" not in value)
    return " ".join(("SetEnv", "SHLVL=1", *words))
