"""What nobody needs any more in state_dir: old runs, and agents of other versions of hsops. Done by every launch."""

import contextlib
import os
import shutil
import time

from hsops.agent import leases, procs
from hsops.agent.rundir import RunDir, all_runs

KEPT_RUNS = 20  # that have ended, of each server
UNUSED_S = 7 * 86400.0  # an agent: each start notes its day (``__main__.note_use``); a run of elsewhere
_GONE = ".gone-"


def prune(state_dir: str) -> None:
    """Remove them. What cannot be removed stays, and hinders nobody."""
    with contextlib.suppress(OSError):
        _runs(os.path.join(state_dir, "runs"))
    with contextlib.suppress(OSError):
        _agents(os.path.join(state_dir, "agent"))


def _runs(folder: str) -> None:
    """All but the newest of each server, and all but those of which a process is left, or may be left elsewhere."""
    old: list[RunDir] = []
    seen: dict[str, int] = {}
    for run in all_runs(folder):
        spec = run.read("spec.json")
        server = str(spec.get("server"))
        seen[server] = seen.get(server, 0) + (not run.running())
        # of another boot, or of a machine or container that shares state_dir, only its supervisor's word can be known
        if seen[server] > KEPT_RUNS and (
            spec.get("where") == leases.where()
            or (run.read("state.json").get("phase") != "running" and _is_old(run.path))
        ):
            old.append(run)
    snapshot = procs.Snapshot() if old else None
    for run in old:
        if not run.busy() and not run.processes(run.read("state.json"), snapshot):
            os.rename(run.path, os.path.join(folder, _GONE + run.id))  # at once: half a run is none
    for name in os.listdir(folder):
        if name.startswith(_GONE):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _agents(folder: str) -> None:
    """Those that no process runs and that were not used for a week; with the byte code beside them."""
    files: dict[str, list[str]] = {}
    for name in os.listdir(folder):
        files.setdefault(name.partition(".")[0], []).append(os.path.join(folder, name))
    titles = [procs.title(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()]
    for stem, paths in files.items():
        if all(map(_is_old, paths)) and not any(f"/{stem}." in title for title in titles):
            for path in paths:
                os.unlink(path)


def _is_old(path: str) -> bool:
    return os.stat(path).st_mtime < time.time() - UNUSED_S
