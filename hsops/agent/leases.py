"""The files behind the host's lock: ``<state_dir>/lock/<n>.lease``, a *lease* each; the highest n counts.

Taking the lock is making the next n, which succeeds for one only (``link``; over NFS too). A lease that is not renewed
for its ``ttl`` has expired, and so has one whose process on this machine is gone. Nothing of this has to outlive a
power cut.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time
from typing import Any

from hsops.agent import procs
from hsops.agent.protocol import Refusal

TTL_S = 30.0
_KNOWN = 16  # holders whose lock was taken away that a lease remembers; one asks within a second or so
_END_S = 5.0  # for a killed process to be gone; one that waits for a dead disk stays longer
_TEMPORARY = ".hsops-tmp-"
_TOLD = ("n", "who", "pid", "command", "what", "reason", "taken", "agent", "ttl")


def told(lease: dict[str, Any]) -> dict[str, Any]:
    """A lease for people and clients.

    ``n``, ``who``, ``pid``, ``command``, ``what`` (it does), ``reason`` (as its user says), ``taken`` (seconds since
    the epoch), ``age_s``, ``expires_s`` (from now), ``state`` (held | expired), ``agent`` (pid and start of the process
    at work, or null), ``words``.
    """
    known = {name: lease.get(name) for name in _TOLD}
    left = float(lease["ttl"]) - age(lease)
    return {
        **known,
        "age_s": round(max(0.0, time.time() - lease["taken"]), 1),
        "expires_s": round(max(0.0, left), 1),
        "state": state_of(lease),
        "words": words(lease),
    }


def claim(folder: str, lease: dict[str, Any]) -> bool:
    """Make lease n; False when somebody else did."""
    temporary = write(folder, lease)
    try:
        os.link(temporary, path(folder, lease["n"]))
    except FileExistsError:
        return False
    except OSError as error:
        raise no_lock(folder, "link", error) from None
    finally:
        os.unlink(temporary)
    for name in os.listdir(folder):  # what is over, and what a kill left
        old = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            if _number(name) < lease["n"] and (_number(name) or time.time() - os.stat(old).st_mtime > TTL_S):
                os.unlink(old)
    return highest(folder) == int(lease["n"])  # not so when it was stopped here, and n was made and removed meanwhile


def no_lock(folder: str, what: str, error: OSError) -> Exception:
    """What it means that the file system refuses to ``what``: nobody can be kept out. Any other ``error`` as it is."""
    if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EMLINK):
        return error
    said = f"{folder} lies on a file system on which there can be no lock ({what}: {error.strerror})"
    return Refusal("no-lock", said, path=folder)


def current(folder: str) -> tuple[int, dict[str, Any] | None]:
    """The lease that counts and its n; (0, None) when the lock was never taken."""
    while n := highest(folder):
        try:
            with open(path(folder, n), encoding="utf-8") as file:
                lease: dict[str, Any] = json.load(file)
            if lease["n"] == n and lease["ttl"] + lease["renewed"] + lease["taken"]:
                return n, lease
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError):
            pass
        return n, {"n": n, "who": "somebody", "ttl": 0.0, "taken": 0.0, "renewed": 0.0}  # not what hsops wrote: expired
    return 0, None


def highest(folder: str) -> int:
    """The n that counts; 0 when the lock was never taken."""
    try:
        return max(map(_number, os.listdir(folder)), default=0)
    except FileNotFoundError:
        return 0


def state_of(lease: dict[str, Any] | None) -> str:
    """``free``, ``held``, or ``expired``: not renewed in time, or of a process that is gone."""
    if lease is None or lease.get("free"):
        return "free"
    agent = lease.get("agent")
    gone = agent and lease.get("where") == where() and not procs.is_alive(*agent)
    return "expired" if gone or age(lease) > lease["ttl"] else "held"


def age(lease: dict[str, Any]) -> float:
    """Seconds since a lease was renewed. The wall clock counts only between machines, or after a reboot."""
    if lease.get("boot") == procs.boot_id():
        return time.clock_gettime(time.CLOCK_BOOTTIME) - float(lease["clock"])
    return abs(time.time() - float(lease["renewed"]))


def fresh(before: dict[str, Any] | None, asked: dict[str, Any]) -> dict[str, Any]:
    """The lease after ``before``, which this process works under; it remembers from whom it took the lock."""
    said = {name: asked[name] for name in ("token", "who", "pid", "command", "what", "reason")}
    ttl = ttl_of(asked)
    held = before or {"n": 0, "free": True}
    lost = held.get("lost", [])
    if not held.get("free") and held.get("token") != said["token"]:  # who takes his own again lost nothing
        lost = [*lost, [held.get("token"), f"{said['who']} took it with {said['command']!r}"]][-_KNOWN:]
    n = held["n"] + 1
    return {"n": n, **said, "ttl": ttl, "taken": time.time(), "free": False, "lost": lost, **now(), **worker()}


def ttl_of(asked: dict[str, Any], name: str = "ttl") -> float:
    """Seconds for which a lease is asked for, within reason."""
    return min(max(float(asked.get(name, TTL_S)), 0.5), 600.0)


def taker(lease: dict[str, Any] | None, token: str) -> str:
    """Who took the lock from the command of ``token``, in words; empty: nobody, as far as ``lease`` remembers."""
    return next((words for held, words in (lease or {}).get("lost", []) if held == token), "")


def now() -> dict[str, Any]:
    """The fields that a renewal sets."""
    return {"renewed": time.time(), "clock": time.clock_gettime(time.CLOCK_BOOTTIME), "boot": procs.boot_id()}


def worker() -> dict[str, Any]:
    """The fields that tell which process works under the lease: this one."""
    me = procs.look(os.getpid())
    return {"agent": [os.getpid(), me.start if me else 0], "where": where()}


def where() -> str:
    """Where pids mean the same: a machine since its start, and a container of it."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{os.uname().nodename} {procs.boot_id()} {space}"


def end(lease: dict[str, Any]) -> bool:
    """Kill the process that works under ``lease``, with its children, if it is on this machine.

    Returns whether there was one.

    Raises:
        Refusal: ``not-ended``.
    """
    if lease.get("where") != where() or not lease.get("agent"):
        return False
    pid, start = lease["agent"]
    if pid == os.getpid() or not procs.is_alive(pid, start):  # our own time may be over while we wait
        return False
    me = procs.look(pid)
    family = [proc for proc in procs.tree(pid) if me and proc.session == me.session]
    for proc_pid, proc_start in [(pid, start), *((proc.pid, proc.start) for proc in family)]:
        with contextlib.suppress(OSError):
            procs.send(proc_pid, proc_start, signal.SIGKILL)
    until = time.monotonic() + _END_S
    while procs.is_alive(pid, start):
        if time.monotonic() > until:
            raise Refusal("not-ended", f"{words(lease)}; its process {pid} on the host cannot be ended", pid=pid)
        time.sleep(0.01)
    return True


def write(folder: str, lease: dict[str, Any]) -> str:
    """A temporary file with the lease. Nothing of this outlives a power cut, so nothing is synced."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    temporary = os.path.join(folder, f"{_TEMPORARY}{os.urandom(6).hex()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(lease, file)
    except OSError:  # a full disk is tried again and again
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return temporary


def path(folder: str, n: int) -> str:
    """Where lease n lies."""
    return os.path.join(folder, f"{n}.lease")


def folder_of(state_dir: str) -> str:
    """Where the leases lie."""
    return os.path.join(os.path.abspath(os.path.expanduser(state_dir)), "lock")


def _number(name: str) -> int:
    stem = name[: -len(".lease")] if name.endswith(".lease") else ""
    return int(stem) if stem.isdigit() else 0


def words(lease: dict[str, Any]) -> str:
    """Who holds it, for what, since when: a sentence."""
    seconds = max(0.0, time.time() - lease["taken"])
    unit, size = ("s", 1) if seconds < 120 else ("min", 60) if seconds < 7200 else ("h", 3600)
    told = ": ".join(filter(None, (lease.get("what"), lease.get("reason"))))
    what = f" ({told})" if told else ""
    for_ = f"{lease.get('command')!r}{what} since {seconds / size:.0f} {unit}"
    return f"{lease['who']}, pid {lease.get('pid')}, holds this host's lock for {for_}"
