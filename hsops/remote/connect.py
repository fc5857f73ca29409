"""From an inventory's host to a ``Host``."""

from __future__ import annotations

from hsops.core.inventory import HostSpec
from hsops.core.way import Way
from hsops.remote.host import Host
from hsops.remote.local import LocalHost


def connect(spec: HostSpec, *, accept_new: bool = False) -> Host:
    """A host that connects on first use.

    Args:
        spec: the host in the inventory.
        accept_new: store the key of a host seen for the first time instead of refusing it.
    """
    if spec.ssh == "local":
        return LocalHost(spec.name, spec.via)
    from hsops.remote.ssh import SshHost  # loads fabric and paramiko: half a second

    return SshHost(Way.of(spec), accept_new=accept_new)
