"""Every error hsops raises on purpose.

HsopsError                       exit 1
├── UsageError                   exit 2   a command line that cannot be meant
├── PartialError                 exit 3   some of it was done; a rerun continues
├── ConfigError                  exit 4   inventory, playbook or prompts: every fault at once
├── UnreachableError             exit 5   no connection to a host
│   ├── HostKeyError                      unknown or changed host key
│   ├── AuthenticationError               the host said no to every key
│   └── DeadlineError                     a remote call ran past its deadline
├── LockedError                  exit 6   somebody else is working on the host
├── UnhealthyError               exit 7   the server died, hangs, or never became healthy
├── RemoteError                  exit 1   a command on the host failed
│   ├── AgentError                        the agent refused, with a code
│   └── AgentKilledError                  the agent was ended from outside
├── LabError                     exit 1   the practice host cannot be set up or taken down
├── SpaceError                   exit 1   not enough room, here or on a host
├── UnsupportedError             exit 1   an SGLang that hsops cannot work with
├── ForeignError                 exit 1   somebody else's changes are in the way
├── StalePlanError               exit 1   a plan of another host, or the host changed since
└── BadDataError                 exit 1   a dump, a log or a file is not what it claims

Classes decide, never the text of a message. Each library's exceptions are translated in
its one door (``hsops.remote``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar


class HsopsError(Exception):
    """What happened, where, why it matters and what to type next.

    Args:
        message: what happened, in one sentence, with the value that was wrong.
        host: the host's name in the inventory, when one is concerned.
        why: why it matters or what it means; may be empty.
        fix: what to do or type next; may be empty.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, host: str | None = None, why: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.message, self.host, self.why, self.fix = message, host, why, fix

    def as_json(self) -> list[dict[str, Any]]:
        """The entries of ``errors`` in the JSON envelope."""
        entry: dict[str, Any] = {"type": type(self).__name__, "message": self.message}
        for key in ("host", "why", "fix"):
            if value := getattr(self, key):
                entry[key] = value
        return [entry]


class UsageError(HsopsError):
    """The command line cannot be meant."""

    exit_code = 2


class PartialError(HsopsError):
    """Some of it was done and kept; running the command again continues."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a file the user wrote. ``line`` and ``column`` count from 1; 0 means the whole file."""

    file: str
    line: int
    column: int
    where: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{place}: {self.where + ': ' if self.where else ''}{self.message}"


class ConfigError(HsopsError):
    """A file the user wrote has faults; all of them are listed."""

    exit_code = 4

    def __init__(self, faults: list[Fault], *, fix: str = "") -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in faults), fix=fix)

    def as_json(self) -> list[dict[str, Any]]:
        return [{"type": type(self).__name__, "message": str(f), **asdict(f), "fix": self.fix} for f in self.faults]


class UnreachableError(HsopsError):
    """No connection to the host."""

    exit_code = 5


class HostKeyError(UnreachableError):
    """The host's key is unknown, or not the one that known_hosts has."""


class AuthenticationError(UnreachableError):
    """The host accepted none of our keys."""


class DeadlineError(UnreachableError):
    """A remote call ran past its connect, idle or total deadline."""


class LockedError(HsopsError):
    """Somebody else is working on the host."""

    exit_code = 6


class UnhealthyError(HsopsError):
    """The server died, hangs, or did not become healthy."""

    exit_code = 7


class RemoteError(HsopsError):
    """A command on the host failed."""


class AgentError(RemoteError):
    """The agent on the host refused or failed.

    Args:
        code: the agent's own word for it (``hsops.agent.protocol.Refusal.code``), for code to decide on.
        detail: facts that belong to the code.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        detail: dict[str, Any] | None = None,
        host: str | None = None,
        why: str = "",
        fix: str = "",
    ) -> None:
        super().__init__(message, host=host, why=why, fix=fix)
        self.code, self.detail = code, detail or {}

    def as_json(self) -> list[dict[str, Any]]:
        (entry,) = super().as_json()
        return [{**entry, "code": self.code, **({"detail": self.detail} if self.detail else {})}]


class AgentKilledError(RemoteError):
    """A signal ended the agent: the OOM killer's, or that of an sshd that was stopped."""


class LabError(HsopsError):
    """The practice host on this machine cannot be set up or taken down."""


class SpaceError(HsopsError):
    """There is not enough room, here or on a host."""


class UnsupportedError(HsopsError):
    """What is installed on the host is not something hsops can work with.

    Args:
        detail: the same for programs.
    """

    def __init__(
        self,
        message: str,
        *,
        detail: dict[str, Any] | None = None,
        host: str | None = None,
        why: str = "",
        fix: str = "",
    ) -> None:
        super().__init__(message, host=host, why=why, fix=fix)
        self.detail = detail or {}

    def as_json(self) -> list[dict[str, Any]]:
        (entry,) = super().as_json()
        return [{**entry, **({"detail": self.detail} if self.detail else {})}]


class ForeignError(HsopsError):
    """Somebody else's changes are in the way; ``--force`` is for those who looked."""


class StalePlanError(HsopsError):
    """A plan was made for another host, or for what is not there any more."""


class BadDataError(HsopsError):
    """A dump, a manifest, a log or a file is not what it claims to be."""
