"""A client that holds a host's lock for as long as a test wants, as a process of its own.

``python lock_client.py PYTHON STATE_DIR TTL BOUNDARY``: deploys hs-dump with that boundary and keeps the lock, says
``holding``, and after a line on standard input reverts it and says ``done``, or the error's type and message.
"""

from __future__ import annotations

import sys

from hsops.core.errors import HsopsError
from hsops.core.inventory import HsDumpPatch
from hsops.deploy import do, payload, plan
from hsops.remote.agent import Agent
from hsops.remote.local import LocalHost
from hsops.remote.lock import Lock


def main(python: str, state_dir: str, ttl: str, boundary: str) -> None:
    agent = Agent(LocalHost("here"), python=python, state_dir=state_dir, lock_wait=0)
    wanted = payload.build(HsDumpPatch(name="hs-dump", boundaries=(int(boundary),)))
    try:
        with Lock(agent, "hsops deploy", reason="the night run", ttl=float(ttl)) as lock:
            do.apply(lock, plan.plan(do.look(agent, "hs-dump"), wanted), keep=True)
            back = plan.plan_revert(do.look(agent, "hs-dump"), "hs-dump")
            print("holding", flush=True)
            sys.stdin.readline()
            do.revert(lock, back)
            print("done", flush=True)
    except HsopsError as error:
        print(type(error).__name__, error.message, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
