"""OpenSSH's client as a child process: bulk streams, and the way through jump hosts. Its one door."""

from __future__ import annotations

import re
import shlex

from hsops.core.deadline import Deadline
from hsops.core.errors import AuthenticationError, DeadlineError, HostKeyError, HsopsError, UnreachableError
from hsops.remote.child import ChildStream
from hsops.remote.scratch import PassedFile
from hsops.remote.shell import Envelope
from hsops.remote.target import Target

# The cipher is the fastest where the processor has AES instructions; the rest of the default list stays behind it.
# No shared connection: its sessions would all go through one TCP stream and one cipher's core.
_OPTIONS = {
    "BatchMode": "yes",
    "ServerAliveCountMax": "3",
    "Ciphers": "^aes128-gcm@openssh.com",
    "Compression": "no",
    "ControlMaster": "no",
    "ControlPath": "none",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "EscapeChar": "none",
    "UpdateHostKeys": "no",
    "LogLevel": "ERROR",
}

# OpenSSH tells what went wrong in words only: exit 255 and its log. The log is apart from the command's stderr.
_WORDS: tuple[tuple[str, type[UnreachableError]], ...] = (
    (r"host key verification failed|identification has changed|host key is known|host key .* revoked", HostKeyError),
    (r"permission denied \(|too many authentication failures|no more authentication methods", AuthenticationError),
    (r"timed out|timeout, server", DeadlineError),
)
FAILED = 255


def client(target: Target, connect: float, *more: str) -> list[str]:
    """``ssh`` with everything but how to find the host, the destination and the command."""
    options = {
        **_OPTIONS,
        "ServerAliveInterval": str(max(1, round(target.keepalive))),
        "ConnectTimeout": str(max(1, round(connect))),
        "StrictHostKeyChecking": "accept-new" if target.accept_new else "yes",
    }
    return ["ssh", "-T", *(word for key, value in options.items() for word in ("-o", f"{key}={value}")), *more]


def jump(target: Target, connect: float) -> list[str]:
    """A command whose input and output are the target's SSH port, reached through its ProxyJump hops."""
    *before, last = target.jump.split(",")
    by = ("-J", ",".join(before)) if before else ()
    to = ("-W", f"[{target.hostname}]:{target.port}")
    url = last if last.startswith("ssh://") else f"ssh://{last}"
    return [*client(target, connect, *target.config, *by, *to), "--", url]


def translate(log: str, target: Target) -> HsopsError:
    """Our error for OpenSSH's last words."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith("@")]
    known = ((kind, line) for words, kind in _WORDS for line in lines if re.search(words, line, re.IGNORECASE))
    kind, said = next(known, (UnreachableError, lines[-1] if lines else "it said nothing"))
    by_hand = shlex.join(["ssh", *target.config, *target.at_port, target.destination, "true"])
    return kind(f"ssh to {target} failed: {said}", host=target.name, fix=f"try it: {by_hand}")


class OpenSshStream(ChildStream):
    """A command's output over a connection of its own."""

    def __init__(self, target: Target, envelope: Envelope, deadline: Deadline) -> None:
        self._target = target
        self._log = PassedFile("hsops-ssh")
        through = ("-o", f"ProxyCommand={_escape(jump(target, deadline.connect))}") if target.jump else ()
        how = (*target.config, *target.at_port, *through, "-E", self._log.path)
        argv = [*client(target, deadline.connect, *how), "--", target.destination, envelope.line]
        super().__init__(target.name, argv, envelope, deadline)

    def __exit__(self, *details: object) -> None:
        try:
            super().__exit__(*details)
        finally:
            self._log.close()

    def failure(self, code: int) -> HsopsError | None:
        if code != FAILED or self.ended:
            return super().failure(code)
        self._log.file.seek(0)
        log = self._log.file.read().decode(errors="replace")
        if not self.started:  # then stderr is the proxy's
            log = self.stderr.decode(errors="replace") + log
        return translate(log or "the connection was lost", self._target)


def _escape(argv: list[str]) -> str:
    """A command for ``ProxyCommand``. OpenSSH's own ProxyJump would not pass our options on to the hops."""
    return shlex.join(argv).replace("%", "%%")
