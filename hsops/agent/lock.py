"""Who may change this host: one command at a time, told by name, never for ever.

Who holds lease n (``leases.py``) has lost the lock when n + 1 is there, or when n was not renewed in time: a holder
looks before every step (``Held.check``) and changes nothing from then on. A verb renews its lease while it works;
between two verbs of one command nobody does, so that the lock of a client that is stopped or gone expires.

Whoever takes over an expired lease first ends the process that worked under it, if that is on this machine. What may
be half done is known to the journals, and the kernel's lock (``exclusive``) tells those that are being written from
those that were left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from hsops.agent import audit, leases
from hsops.agent.protocol import Refusal, emit

WAIT_S = 10.0
_BEAT_S = 2.0
STEP_S = 600.0  # one step of a change on a slow disk; what takes longer stands still
_LOOK_S = 5.0  # for those that only look, which takes them milliseconds


class Held:
    """The lock in this process' hands.

    Args:
        lease: as taken; None: a ``stop --force`` that goes on beside whoever holds it.
        before: the lease of a holder that did not come to its end.
        beside: who holds it while this goes on all the same.
    """

    def __init__(
        self,
        folder: str,
        lease: dict[str, Any] | None,
        before: dict[str, Any] | None = None,
        beside: dict[str, Any] | None = None,
    ) -> None:
        self.folder, self.lease, self.before, self.beside = folder, lease, before, beside
        self._mutex, self._moved = threading.Lock(), time.monotonic()

    def check(self) -> None:
        """The lock is still ours: asked before every step that changes something. Renews it in time.

        Raises:
            Refusal: ``lock-lost``. Nothing may be changed any more, nothing undone: that is the next holder's now.
        """
        self._moved = time.monotonic()
        if self.lease and not self.renew(self.lease["ttl"] / 4):
            raise _lost(self.folder, self.lease)

    def renew(self, after: float = 0.0, **changed: Any) -> bool:
        """Count the time to live anew, unless it is over; whether the lock is still ours.

        Args:
            after: seconds since the last time before which there is nothing to do.
            changed: fields of the lease.

        Raises:
            OSError: ``changed`` could not be written. A mere renewal is tried again until the time is over: a disk
                that is full for a moment must not end a change half way.
        """
        if self.lease is None:
            return True
        with self._mutex:
            since = leases.age(self.lease)
            if leases.highest(self.folder) != self.lease["n"] or since > self.lease["ttl"]:
                return False
            if since >= after:
                lease = {**self.lease, **leases.now(), **changed}
                try:
                    os.replace(leases.write(self.folder, lease), leases.path(self.folder, lease["n"]))
                    self.lease = lease
                except OSError:
                    if changed:
                        raise
        return True

    @contextlib.contextmanager
    def kept_alive(self, step: float = math.inf) -> Iterator[None]:
        """Renew it meanwhile, from a thread, and let the client hear that the agent is there.

        For steps that take their time, such as somebody's script or a sync of a slow disk. A process that is stopped
        is so with its threads.

        Args:
            step: seconds after the last ``check`` from which on the work counts as standing still: then it expires.
        """
        over = threading.Event()
        self._moved = time.monotonic()
        thread = threading.Thread(target=self._keep_alive, args=(over, step), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _keep_alive(self, over: threading.Event, step: float) -> None:
        while self.lease and not over.wait(min(_BEAT_S, self.lease["ttl"] / 4)):
            if time.monotonic() - self._moved > step:
                break
            with contextlib.suppress(OSError):  # a client that is gone
                self.renew(self.lease["ttl"] / 4)
                emit("beat")

    def leave(self, *, keep: bool, ttl: float = 0.0) -> None:
        """Give it back, or with ``keep`` to the next verb of the same command, which may take ``ttl`` s to arrive."""
        with contextlib.suppress(OSError):  # then it expires
            self.renew(agent=None, free=not keep, **({"ttl": ttl} if keep and ttl else {}))


@contextlib.contextmanager
def held(params: dict[str, Any]) -> Iterator[Held]:
    """Hold the host's lock.

    ``params["lock"]``, all optional: ``token``, the command's own; ``who`` (user@host), ``pid``, ``command``, ``what``
    (it does now), ``reason`` (as its user says); ``wait``, seconds; ``ttl``, seconds; ``held``: an earlier verb of the
    command kept it; ``keep`` it for the next one, ``keep_ttl`` s long; ``force``: if somebody holds it, go on
    without it.

    Raises:
        Refusal: ``locked``, with ``detail.holder``: who has it (``leases.told``); ``lock-lost``: it was kept, and has
            expired or was taken away since; ``not-ended``: the last holder's process outlives SIGKILL; ``no-lock``:
            the file system knows no hard links.
    """
    said, folder = asked(params), leases.folder_of(params["state_dir"])
    mine = _again(folder, said) if said.get("held") else _take(folder, said)
    if mine.before:
        tell(params, "expired", mine.before)
    try:
        yield mine
    except BaseException:
        mine.leave(keep=False)
        raise
    mine.leave(keep=bool(said.get("keep")), ttl=leases.ttl_of(said, "keep_ttl") if "keep_ttl" in said else 0.0)


@contextlib.contextmanager
def exclusive(folder: str, params: dict[str, Any], mine: Held | None = None) -> Iterator[None]:
    """The kernel's lock on ``folder``: whoever has it works there now. A holder whose lease is over is ended.

    Args:
        folder: which.
        params: ``lock_wait``, seconds to wait.
        mine: the host's lock, when it is held.

    Raises:
        Refusal: ``locked``; ``lock-lost`` with ``mine``; ``no-lock``: the file system knows no locks.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    handle = os.open(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    wait, began = float(params.get("lock_wait", WAIT_S)), time.monotonic()
    try:
        until = _Patience(max(wait, _LOOK_S))
        while not _flocked(handle, folder):
            if mine:
                mine.check()
            other = _other(params)
            if (other and time.monotonic() - began > wait) or until.over(other):
                raise _locked(other)
        yield
    finally:
        os.close(handle)


def _flocked(handle: int, folder: str) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise leases.no_lock(folder, "flock", error) from None
    return True


def _other(params: dict[str, Any]) -> dict[str, Any] | None:
    """The lease of somebody else at work; one that has expired is brought to its end. None: they only look."""
    folder = leases.folder_of(params["state_dir"])
    _, lease = leases.current(folder)
    if lease and leases.state_of(lease) == "expired":
        leases.end(lease)  # first: a process that cannot be ended must stay known to the next one
        if void(folder, lease, params):
            tell(params, "expired", lease)
    return lease if lease and lease.get("agent") and lease["agent"][0] != os.getpid() else None


def who(params: dict[str, Any]) -> dict[str, Any]:
    """Who asks for a verb, for the audit log."""
    said = asked(params)
    return {name: said[name] for name in ("who", "pid", "command", "what", "reason")}


def tell(params: dict[str, Any], action: str, lease: dict[str, Any]) -> None:
    """For the audit log: the client of ``params`` took the lock of ``lease``."""
    of = {name: lease.get(name) for name in ("who", "pid", "command", "what", "reason", "taken")}
    audit.append(params["state_dir"], {"action": action, **who(params), "of": of, "outcome": "done"})


def void(folder: str, lease: dict[str, Any], params: dict[str, Any]) -> bool:
    """Put a lease that nobody holds above ``lease``; False when another one is there by now."""
    return leases.claim(folder, {**leases.fresh(lease, asked(params)), "agent": None, "free": True})


def _take(folder: str, asked: dict[str, Any]) -> Held:
    until = _Patience(float(asked.get("wait", WAIT_S)))
    while True:
        _, lease = leases.current(folder)
        state = leases.state_of(lease)
        before = lease if state == "expired" else None
        if state != "held" and _ended(before, asked):
            mine = leases.fresh(lease, asked)
            if leases.claim(folder, mine):
                return Held(folder, mine, before)
            continue  # somebody else was faster
        if asked.get("force"):
            return Held(folder, None, beside=leases.told(lease or {}))
        if until.over(lease):
            raise _locked(lease)


def _ended(lease: dict[str, Any] | None, asked: dict[str, Any]) -> bool:
    """Nobody works under ``lease`` any more.

    Asked before the lock is claimed: while that process cannot be ended its lease is the highest, so that everybody who
    comes sees it. Two may end it at once; one of them claims.

    Raises:
        Refusal: ``not-ended``, unless ``asked`` goes on beside a holder.
    """
    try:
        if lease:
            leases.end(lease)
    except Refusal:
        if not asked.get("force"):
            raise
        return False
    return True


def _again(folder: str, asked: dict[str, Any]) -> Held:
    """Go on with a lease that the command's last verb kept."""
    _, lease = leases.current(folder)
    if lease is None or lease.get("token") != asked["token"] or leases.state_of(lease) != "held":
        raise _lost(folder, asked)
    mine = Held(folder, lease)
    mine.renew(**leases.worker(), what=asked["what"], ttl=leases.ttl_of(asked))
    mine.check()
    return mine


class _Patience:
    """Waits in small steps, keeps the client's line alive, and says for whom it waits."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._beat, self._said = -_BEAT_S, 0

    def over(self, lease: dict[str, Any] | None) -> bool:
        now = time.monotonic()
        if now >= self._until:
            return True
        if now - self._beat > _BEAT_S:
            self._beat = now
            if lease and lease["n"] != self._said:
                self._said = lease["n"]
                emit("waiting", holder=leases.told(lease), seconds=round(self._until - now, 1))
            else:
                emit("beat")
        time.sleep(0.02)
        return False


def asked(params: dict[str, Any]) -> dict[str, Any]:
    """Who wants the lock, what for: as the client says, or as far as it can be told."""
    who = f"{os.environ.get('USER') or os.getuid()}@{os.uname().nodename}"
    known = {"token": os.urandom(8).hex(), "who": who, "pid": os.getppid(), "command": "hsops"}
    known |= {"what": "", "reason": ""}
    return {**known, **(params.get("client") or {}), **(params.get("lock") or {})}


def _locked(lease: dict[str, Any] | None) -> Refusal:
    if lease is None:
        return Refusal("locked", "another hsops is at work on this host, and its lease does not say who", holder=None)
    return Refusal("locked", leases.words(lease), holder=leases.told(lease))


def _lost(folder: str, mine: dict[str, Any]) -> Refusal:
    _, lease = leases.current(folder)
    said = f"the host's lock was lost: {_taker(lease, mine['token'])}; nothing more was changed"
    return Refusal("lock-lost", said, holder=lease and leases.told(lease))


def _taker(lease: dict[str, Any] | None, token: str) -> str:
    if lease is None or lease.get("token") == token:
        return "it expired"
    return leases.taker(lease, token) or f"{lease['who']} took it with {lease.get('command')!r}"
