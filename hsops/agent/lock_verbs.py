"""Verbs about the host's lock that change nothing under it: who has it, take it away, give it back."""

from __future__ import annotations

import time
from typing import Any

from hsops.agent import leases, lock
from hsops.agent.protocol import Refusal

_TAKEN_S = 1.0  # whoever ends a holder's process claims the lock only when that is gone


def show(params: dict[str, Any]) -> dict[str, Any]:
    """Verb ``lock-show``. ``params``: optional ``lock.token`` of a command whose verb ended without an answer.

    Result: ``holder``: told or null; what has expired is told too, by its ``state``. ``taken``: who took the lock from
    that command, in words; empty when nobody did.
    """
    folder, token = leases.folder_of(params["state_dir"]), (params.get("lock") or {}).get("token")
    until = time.monotonic() + _TAKEN_S
    while True:
        _, lease = leases.current(folder)
        ours = lease and token and lease.get("token") == token
        if not ours or leases.state_of(lease) != "expired" or time.monotonic() > until:
            break
        time.sleep(0.01)
    there = leases.told(lease) if lease and leases.state_of(lease) != "free" else None
    return {"holder": there, "taken": leases.taker(lease, token) if token else ""}


def evict(params: dict[str, Any]) -> dict[str, Any]:
    """Verb ``lock-evict``: take the lock away from the holder ``n``. ``params``: ``n``; ``lock``: who does it.

    Result: ``{"evicted": told or null, "ended": whether its process had to be killed}``.

    Raises:
        Refusal: ``changed-meanwhile``: another holds it by now; ``not-ended``: its process outlives SIGKILL, and
            nobody gets the lock before that is gone.
    """
    folder = leases.folder_of(params["state_dir"])
    n, lease = leases.current(folder)
    if lease is None or leases.state_of(lease) == "free":
        return {"evicted": None, "ended": False}
    if n != params["n"]:
        said = f"another holds the lock by now: {leases.words(lease)}"
        raise Refusal("changed-meanwhile", said, holder=leases.told(lease))
    shown = leases.told(lease)
    ended = leases.end(lease)
    if not lock.void(folder, lease, params) and not ended:
        raise Refusal("changed-meanwhile", "somebody else took the lock at this moment")
    lock.tell(params, "unlock", lease)
    return {"evicted": shown, "ended": ended}


def release(params: dict[str, Any]) -> dict[str, Any]:
    """Verb ``lock-release``: a command that kept the lock needs it no more. ``params``: ``lock.token``."""
    folder = leases.folder_of(params["state_dir"])
    _, lease = leases.current(folder)
    ours = bool(lease and lease.get("token") == params["lock"]["token"])
    if lease and ours:
        lock.Held(folder, lease).leave(keep=False)
    return {"released": ours}
