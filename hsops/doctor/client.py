"""This machine: what hsops needs to reach others."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping

from hsops.doctor.findings import Finding

_OLDEST = (7, 6)  # accept-new, ProxyJump and AES-GCM in the forms that hsops uses


def facts() -> dict[str, str]:
    """``ssh``: what ``ssh -V`` says, or empty."""
    if shutil.which("ssh") is None:
        return {"ssh": ""}
    done = subprocess.run(
        ["ssh", "-V"], capture_output=True, text=True, timeout=10, check=False, stdin=subprocess.DEVNULL
    )
    return {"ssh": (done.stderr or done.stdout).strip().split(",")[0]}


def judge(seen: Mapping[str, str]) -> Iterator[Finding]:
    """What is missing here."""
    if not seen["ssh"]:
        yield Finding(
            "warning",
            "client",
            "no ssh on PATH",
            "fetch runs OpenSSH's client for its streams",
            "install openssh-client",
        )
        return
    version = re.search(r"OpenSSH_(\d+)\.(\d+)", seen["ssh"])
    if version and tuple(map(int, version.groups())) < _OLDEST:
        yield Finding(
            "warning", "client", f"{seen['ssh']} is old", "hsops is tried with 7.6 and newer", "a newer OpenSSH client"
        )
