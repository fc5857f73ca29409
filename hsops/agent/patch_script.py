"""Runs a user's script on a copy of the files that it is to change, and tells what it made of them.

The real files are never the script's to write: it gets a copy of the folders that its files lie in, where the kernel
allows it in the place of the real ones (``patch_view``), else with the real ones watched (``patch_guard``). What became
of the declared files goes to the client, which shows it and lets the engine of every patch carry it out.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import glob
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from hsops.agent import patch_view
from hsops.agent.patch_copy import copy_tree, survey
from hsops.agent.patch_guard import Guard, kill_marked
from hsops.agent.patch_site import too_large
from hsops.agent.patch_store import Store
from hsops.agent.protocol import Refusal

LARGEST_OUTPUT = 16 << 20
LARGEST_FILE = 32 << 20
TAIL = 12  # lines of output that a message shows
MARK = "HSOPS_SCRIPT"  # in the environment of everything that a script starts
_SUBREAPER, _DEATH_SIGNAL = 36, 1


def rehearse(params: dict[str, Any], store: Store, version: str | None, *, import_root: bool) -> dict[str, Any]:
    """Run the script; the real files are as before afterwards. Parameters and result: see ``patch.rehearse``.

    ``version``: SGLang's, here and now.
    """
    site, files = store.site, params["files"]
    for path in files:
        site.path(path)  # it must not lead out
    for scope in {path.split("/")[0] for path in files}:
        if os.path.islink(os.path.join(site.root, scope)):
            raise Refusal("bad-root", f"{scope} is a link: a copy of it could not stand in its place", root=site.root)
    scratch = scratch_of(params["state_dir"], store)
    if os.path.commonpath((site.root, os.path.realpath(os.path.dirname(scratch)))) == site.root:
        raise Refusal("bad-root", f"state_dir lies below root, {site.root}", root=site.root)
    discard(scratch)
    run = _Run(params, store, scratch, version, import_root)
    try:
        return run.result()
    finally:
        discard(scratch)


def scratch_of(state_dir: str, store: Store) -> str:
    """The folder that a script of this patch works in; there only while it runs, or after a crash."""
    return os.path.join(os.path.abspath(os.path.expanduser(state_dir)), "scratch", store.patch, store.key)


def discard_all(state_dir: str) -> dict[str, str]:
    """``discard`` for every script that ran when its agent was killed: patches of which files were brought back, and
    where lies what lay there."""
    folder = os.path.join(os.path.abspath(os.path.expanduser(state_dir)), "scratch")
    keys = [(name, key) for name in os.listdir(folder) for key in os.listdir(os.path.join(folder, name))]
    told = [(name, discard(os.path.join(folder, name, key))) for name, key in keys]
    for empty in (*glob.glob(os.path.join(glob.escape(folder), "*")), folder):
        with contextlib.suppress(OSError):  # of a kill between two mkdirs
            os.rmdir(empty)
    return {name: aside for name, aside in told if aside is not None}


def discard(scratch: str) -> str | None:
    """End what a script of before left running, bring back what it may have changed, remove its copy.

    Returns where lies what was taken away by that, perhaps nothing; None: it had changed nothing.
    """
    if not os.path.isdir(scratch):
        return None
    kill_marked(MARK, scratch)
    guard = Guard(scratch)
    changed = guard.watched() and any(guard.restore())
    shutil.rmtree(scratch, onerror=_force)
    with contextlib.suppress(OSError):
        os.removedirs(os.path.dirname(scratch))
    return guard.aside if changed else None


def _force(_: Any, path: str, __: Any) -> None:
    """A folder that the script made unreadable or read-only is no reason to keep it."""
    with contextlib.suppress(OSError):
        os.chmod(os.path.dirname(path), 0o700)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o700)
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


class _Run:
    """One run.

    Args:
        params: of the verb.
        store: of the patch.
        scratch: the folder to work in.
        version: of SGLang.
        import_root: the root is one that modules are imported from.
    """

    def __init__(
        self, params: dict[str, Any], store: Store, scratch: str, version: str | None, import_root: bool
    ) -> None:
        self.params, self.store, self.site, self.scratch = params, store, store.site, scratch
        self.version, self.import_root, self.name = version, import_root, str(params["name"])
        self.copy = os.path.join(scratch, "root")
        self.scopes = sorted({path.split("/")[0] for path in params["files"]})

    def result(self) -> dict[str, Any]:
        started = time.monotonic()
        self._prepare()
        before = survey(self.copy)
        private, code, ended = self._start()
        after = survey(self.copy)
        if code:
            raise self._refused("script-failed", _how_it_ended(code, self.params["timeout"]), exit=code)
        self._check(before, after)
        made = [path for path in self.params["files"] if path in after]
        too_large({path: os.path.getsize(os.path.join(self.copy, path)) for path in made})
        files = {
            path: self._told(path, after.get(path)) for path in self.params["files"] if _differ(path, before, after)
        }
        seconds = round(time.monotonic() - started, 3)
        return {"files": files, "output": self._tail(), "seconds": seconds, "private": private, "ended": ended}

    def _prepare(self) -> None:
        """The copy, as it is without the patch, and the script."""
        os.makedirs(self.copy, mode=0o700)
        os.makedirs(os.path.join(self.scratch, "script"), mode=0o700)
        copy_tree(self.site.root, self.scopes, self.copy)
        for path, old in without_patch(self.store, self.version):
            target = os.path.join(self.copy, path)
            if path.split("/")[0] not in self.scopes:
                continue
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)
            if old:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(target, "wb") as file:
                    file.write(self.store.get(old["sha256"]))
                os.chmod(target, old["mode"])
        with open(self._script, "wb") as file:
            file.write(base64.b64decode(self.params["script_b64"]))

    @property
    def _script(self) -> str:
        return os.path.join(self.scratch, "script", os.path.basename(self.name))

    def _start(self) -> tuple[bool, int, int]:
        """Run it: whether in a view of its own, its exit code (0: fine), and how many processes it left behind."""
        folders = [scope for scope in self.scopes if os.path.isdir(os.path.join(self.site.root, scope))]
        if self.params.get("private") != "no":
            # what stands right below root cannot be made, or replaced, where root is read-only: then it sees the copy
            root = self.site.root if folders == self.scopes else self.copy
            places = [(os.path.join(self.copy, scope), os.path.join(self.site.root, scope)) for scope in folders]
            with contextlib.suppress(subprocess.SubprocessError):
                return (True, *self._wait(root, lambda: patch_view.enter(self.site.root, places)))
        guard = Guard(self.scratch)
        guard.watch(self.site.root, self.scopes)
        code, ended = self._wait(self.copy, lambda: None)
        restored, lost = guard.restore()
        if restored or lost:
            raise self._escaped(restored, lost, guard.aside)
        return False, code, ended

    def _wait(self, root: str, enter: Callable[[], None]) -> tuple[int, int]:
        libc = ctypes.CDLL(None, use_errno=True)

        def child() -> None:
            libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            enter()
            os.chdir(root)

        args = [word.replace("{root}", root) for word in self.params.get("args", [])]
        libc.prctl(_SUBREAPER, 1, 0, 0, 0)  # what it leaves behind becomes ours, to be ended
        with open(os.path.join(self.scratch, "output"), "wb") as output:
            process = subprocess.Popen(
                [sys.executable, self._script, *args],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(root),
                preexec_fn=child,  # noqa: PLW1509 - the agent has one thread
                start_new_session=True,
            )
        try:
            return self._watch(process), _end_children(process.pid)
        finally:
            _end_children(0)

    def _watch(self, process: subprocess.Popen[bytes]) -> int:
        until = time.monotonic() + self.params["timeout"]
        while (code := process.poll()) is None:
            late = time.monotonic() > until
            if late or os.path.getsize(os.path.join(self.scratch, "output")) > LARGEST_OUTPUT:
                _kill_group(process.pid)
                process.wait()
                return _LATE if late else _LOUD
            time.sleep(0.02)
        return code

    def _environment(self, root: str) -> dict[str, str]:
        own = {"HSOPS_ROOT": root, MARK: self.scratch, "PYTHONDONTWRITEBYTECODE": "1"}
        if self.import_root:
            own["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        return {**os.environ, **own, **self.params.get("env", {})}

    def _check(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        declared = set(self.params["files"])
        touched = sorted(path for path in before.keys() | after.keys() if _differ(path, before, after))
        if undeclared := [path for path in touched if path not in declared]:
            shown = ", ".join(undeclared[:5]) + (f" and {len(undeclared) - 5} more" if len(undeclared) > 5 else "")
            raise self._refused("script-touched", f"changed what it does not name: {shown}", files=undeclared)
        for path in touched:
            if path in after and after[path][0] != "file":
                raise self._refused("script-touched", f"made {path} a link, a pipe or a device", files=[path])

    def _told(self, path: str, found: tuple[str, int, str] | None) -> dict[str, Any] | None:
        if found is None:
            return None
        full = os.path.join(self.copy, path)
        if os.path.getsize(full) > LARGEST_FILE:
            raise self._refused("script-touched", f"made {path} larger than {LARGEST_FILE >> 20} MiB", files=[path])
        with open(full, "rb") as file:
            return {"content_b64": base64.b64encode(file.read()).decode(), "mode": found[1]}

    def _escaped(self, restored: list[str], lost: list[str], aside: str) -> Refusal:
        said = f"or somebody else wrote below {self.site.root} meanwhile, not in the folder that the script was given"
        if restored:
            said += f"; brought back: {', '.join(restored)}"
        if lost:
            said += f"; NOT brought back or taken away, for want of a copy or of room: {', '.join(lost)}"
        if aside:
            said += f"; what lay there is kept in {aside}"
        return self._refused("script-escaped", said, files=restored, lost=lost, aside=aside)

    def _refused(self, code: str, how: str, **detail: Any) -> Refusal:
        output = self._tail()
        lines = "".join(f"\n  | {line}" for line in output[-TAIL:])
        return Refusal(code, f"{self.name} {how}{lines}", patch=self.store.patch, output=output, **detail)

    def _tail(self) -> list[str]:
        try:
            with open(os.path.join(self.scratch, "output"), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 8000))
                return file.read().decode(errors="replace").splitlines()[-100:]
        except FileNotFoundError:
            return []


_LATE, _LOUD = 1000, 1001  # no process exits so


def _how_it_ended(code: int, timeout: float) -> str:
    if code == _LATE:
        return f"ran longer than {timeout:g} s and was ended"
    if code == _LOUD:
        return f"printed more than {LARGEST_OUTPUT >> 20} MiB and was ended"
    return f"exited with {code}" if code > 0 else f"was ended by signal {-code}"


def without_patch(store: Store, version: str | None) -> list[tuple[str, dict[str, Any] | None]]:
    """The files that are the patch's own work now, each with the state that it had before.

    Not those of another SGLang: the script would bring the old one's code back.
    """
    from hsops.agent import patch_plan

    record = store.record()
    judged = patch_plan.judge(record, store.site, version)["files"]
    entries = [entry for entry in record["files"] if not entry["cache"]] if record else []
    apart = ("original", "replaced")
    return [(entry["path"], entry["original"]) for entry in entries if judged[entry["path"]] not in apart]


def _differ(path: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    return bool(before.get(path) != after.get(path))


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _end_children(group: int) -> int:
    """End all that is still below this process; returns how many there were.

    As a subreaper it inherits what the script's processes leave, so the loop comes to an end when none is left.
    """
    if group:
        _kill_group(group)
    seen: set[int] = set()
    while children := _children():
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        seen |= children
    return len(seen)


def _children() -> set[int]:
    me, found = str(os.getpid()), set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[1].decode() == me:
                found.add(int(name))
    return found
