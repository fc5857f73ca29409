"""From an inventory's host to a ``Host``."""

from __future__ import annotations

import sys

from hsops.core.errors import UsageError
from hsops.core.inventory import HostSpec
from hsops.core.way import Way
from hsops.remote.host import Host
from hsops.remote.local import LocalHost


def connect(spec: HostSpec, *, accept_new: bool = False) -> Host:
    """A host that connects on first use.

    Args:
        spec: the host in the inventory.
        accept_new: store the key of a host seen for the first time instead of refusing it.

    Raises:
        UsageError: it is this machine, on which no SGLang can run.
    """
    if spec.ssh == "local":
        if sys.platform != "linux" and not spec.via:  # a container's prefix leads to a Linux
            raise UsageError(
                f"hosts.{spec.name} is this machine (ssh: local), and hsops works on Linux hosts only",
                fix="ssh: user@host of a Linux machine; or via: [docker, exec, -i, NAME]",
            )
        return LocalHost(spec.name, spec.via)
    from hsops.remote.ssh import SshHost  # loads fabric and paramiko: half a second

    return SshHost(Way.of(spec), accept_new=accept_new)
