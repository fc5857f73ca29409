"""A command's hold on a host: its first verb that changes something takes it, the last one gives it back."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from hsops.core.deadline import QUICK, Deadline
from hsops.core.errors import AgentError, HsopsError, LockedError, RemoteError
from hsops.remote.agent import Agent
from hsops.remote.me import myself

TTL_S = 30.0
SLOWEST = 128 << 10
"""Bytes per second of a line on which a request may take longer than a lock that nobody renews meanwhile would live."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a host's lock.

    Args:
        n: counts up with every holder.
        who: user@machine of the client; ``pid``: of the client there.
        command, what: what it does.
        reason: why, as its user says; empty: not said.
        age_s: since it took it; expires_s: until it expires unless it is renewed.
        state: ``held`` or ``expired``.
        words: all this as a sentence.
    """

    n: int
    who: str
    pid: int | None
    command: str | None
    what: str | None
    reason: str | None
    age_s: float
    expires_s: float
    state: str
    words: str


class Lock:
    """The lock of one host for one command. As a context it gives back what a verb kept for the next one.

    Args:
        agent: on the host; its ``lock_wait`` says how long to wait for another holder.
        command: for those who have to wait, and for the audit log; ``reason``: why, as the user says.
        ttl: seconds after which it expires while no verb works.
    """

    def __init__(self, agent: Agent, command: str, *, reason: str = "", ttl: float = TTL_S) -> None:
        self.agent, wait = agent, agent.lock_wait
        self._said = {**myself(), "command": command, "reason": reason, "wait": wait, "ttl": ttl}
        self._said["token"] = secrets.token_hex(8)
        self._kept = False

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def call(
        self,
        verb: str,
        /,
        *,
        what: str,
        keep: bool = False,
        coming: int = 0,
        beside: bool = False,
        deadline: Deadline = Deadline(),
        **params: Any,
    ) -> dict[str, Any]:
        """A verb that changes the host, under the lock.

        Args:
            what: it does.
            keep: the lock, for the command's next verb.
            coming: bytes of that one's request: nobody renews the lock while it travels.
            beside: go on beside another holder.
            deadline: without the wait for the lock.

        Raises:
            LockedError: somebody else has it, or it was lost since the last verb. Nothing was changed.
        """
        said = {**self._said, "what": what, "keep": keep, "force": beside, "held": self._kept}
        deadline = patient(deadline, self.agent)
        if coming:
            said["keep_ttl"] = said["ttl"] + coming / SLOWEST
        self._kept = False  # an error gives it back
        try:
            result = self.agent.call(verb, deadline=deadline, lock=said, **params)
        except AgentError as error:
            raise explained(error, "; in an emergency: hsops stop --force" if verb == "run-stop" else "") from None
        except RemoteError as error:
            raise self._evicted() or error from None
        self._kept = keep
        return result

    def _evicted(self) -> LockedError | None:
        """Why a verb ended without an answer, when somebody ended it to take the lock."""
        with suppress(HsopsError):
            if by := self.agent.call("lock-show", deadline=QUICK, lock=self._said)["taken"]:
                return _lost(f"the host's lock was lost: {by}; its process there was ended", self.agent.host.name)
        return None

    def release(self) -> None:
        """Give back what was kept, if it was; else it expires."""
        if self._kept:
            self._kept = False
            with suppress(HsopsError):
                self.agent.call("lock-release", deadline=QUICK, lock=self._said)


def holder(agent: Agent) -> Holder | None:
    """Who holds the host's lock; None: nobody."""
    found = agent.call("lock-show", deadline=QUICK)["holder"]
    return _holder(found) if found else None


def evict(agent: Agent, shown: Holder, *, reason: str = "") -> bool:
    """Take the lock away from the holder that was shown, who changes nothing more. True when a process was killed.

    ``reason``: why, as the user says, for the audit log.

    Raises:
        AgentError: ``changed-meanwhile``: another one holds it by now.
    """
    said = {**myself(), "command": "hsops unlock", "what": f"took it from {shown.who}", "reason": reason}
    said["token"] = secrets.token_hex(8)
    return bool(agent.call("lock-evict", deadline=QUICK, n=shown.n, lock=said)["ended"])


def patient(deadline: Deadline, agent: Agent) -> Deadline:
    """The deadline of a verb that may have to wait for another client's change first."""
    return replace(deadline, total=None if deadline.total is None else deadline.total + agent.lock_wait)


def explained(error: AgentError, more: str = "") -> HsopsError:
    """Who holds the lock and what to do, with what else helps; other errors as they are."""
    if error.code == "locked":
        return LockedError(
            error.message,
            host=error.host,
            why="two changes at once would spoil each other; nothing was changed",
            fix="wait longer: --lock-wait SECONDS; or take it away, if that one is dead: hsops unlock" + more,
        )
    if error.code == "lock-lost":
        return _lost(error.message, error.host)
    if error.code == "no-lock":
        error.why = "without it two changes at once would spoil each other; nothing was changed"
        error.fix = "set hosts.<name>.state_dir in inventory.yaml to a folder on the host's own disk"
    if error.code == "not-ended":
        error.why = "it outlives SIGKILL, waiting for a disk or a driver, and might write still; nothing was changed"
        error.fix = "bring back what it waits for (ps -o stat,wchan:32,args on the host), or restart the host" + more
    return error


def _holder(raw: dict[str, Any]) -> Holder:
    return Holder(**{name: raw[name] for name in Holder.__dataclass_fields__})


def _lost(message: str, host: str | None) -> LockedError:
    return LockedError(
        message,
        host=host,
        why="this command stood still for too long, or somebody took its lock away with hsops unlock",
        fix="see what is there now, then again: hsops deploy --status",
    )
