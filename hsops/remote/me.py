"""This client, for whoever meets what it left on a host: its lock, its lines in the audit log."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Any


def myself() -> dict[str, Any]:
    """``who``, user@machine, and ``pid``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's uid without a name
        user = str(os.getuid())
    return {"who": f"{user}@{socket.gethostname()}", "pid": os.getpid()}
