"""A way to the host other than a plain TCP connection: ProxyCommand, or OpenSSH's client through ProxyJump's hops."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading

from hsops.core.errors import HsopsError
from hsops.remote.openssh import jump, translate
from hsops.remote.target import Target


class Proxy:
    """A child process at the far end of a socket.

    Args:
        target: where to; it has a ``jump`` or a ``proxy``.
        connect: seconds for the child to connect.
    """

    def __init__(self, target: Target, connect: float) -> None:
        argv = jump(target, connect) if target.jump else ["/bin/sh", "-c", f"exec {target.proxy}"]
        self._target, self._log = target, tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._using = threading.Lock()  # of the log: who watches the link may close it beside its user
        self.sock, theirs = socket.socketpair()
        with theirs:
            end = theirs.fileno()
            self._child = subprocess.Popen(argv, stdin=end, stdout=end, stderr=self._log, start_new_session=True)

    def failure(self) -> HsopsError | None:
        """Why the child ended, once it has; None while it runs, when it said nothing, or after ``close``."""
        try:
            self._child.wait(1.0)  # the socket closes a moment before the process is gone
        except subprocess.TimeoutExpired:
            return None
        with self._using:
            if self._log.closed:
                return None
            self._log.seek(0)
            log = self._log.read().decode(errors="replace")
        return translate(log, self._target) if log.strip() else None

    def close(self) -> None:
        """End the child, from any thread. Idempotent."""
        self.sock.close()
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        with self._using:
            self._log.close()
