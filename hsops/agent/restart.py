"""Whether a server that ended is started again, and when. Pure, but for the looks at the run directory's files."""

import contextlib
import glob
import os
from typing import Any

from hsops.agent.rundir import RunDir

RANK_GRACE_S = 15.0  # from a rank's end to that of a server which did not notice
_CLEAN = ("SIGTERM", "SIGINT", "SIGHUP")  # somebody's wish, as for systemd
_REFUSED = (2, 126, 127)  # argparse's, and what the shell says of a command that cannot be run
_LONGEST_S = 300.0


def decide(policy: "dict[str, Any]", state: "dict[str, Any]", now: float) -> "tuple[float | None, str]":
    """Seconds until the next attempt; or None, and why there is none.

    Args:
        policy: ``max`` attempts within ``window`` seconds, the first after ``backoff`` s, each later one after twice as
            long; empty: never.
        state: state.json of a server that has just ended.
        now: seconds since the epoch.
    """
    if not policy:
        return None, ""
    code, ended_by = state["exit"]["code"], state["exit"]["signal"]
    recent = len([at for at in state["restarts"] if now - at < policy["window"]])
    against = (
        (code == 0, "it ended well"),
        (ended_by in _CLEAN, f"somebody ended it by {ended_by}"),
        (code in _REFUSED, f"exit {code}: its command line was refused"),
        (not state["served"], "it never listened on its port: a start that failed would fail again"),
        (recent >= policy["max"], f"it was started again {recent} times within {policy['window']:g} s"),
    )
    why = next((why for holds, why in against if holds), "")
    return (None, why) if why else (min(policy["backoff"] * 2**recent, _LONGEST_S), "")


def put_aside(run: RunDir, attempt: int) -> None:
    """The log of an attempt that has ended; and what its ranks said of their capture: the next one's speak anew."""
    os.rename(run.log, run.log_of(attempt))
    dump_dir = run.read("spec.json").get("dump_dir")
    said = glob.glob(os.path.join(glob.escape(dump_dir), "hello", f"{run.id}.*.json")) if dump_dir else []
    for path in (*said, os.path.join(run.path, "hellos.json")):
        with contextlib.suppress(OSError):
            os.unlink(path)


def stop_asked(run: RunDir) -> bool:
    """``hsops stop`` wants it to end, or has ended it."""
    return os.path.exists(os.path.join(run.path, "stop.json"))
