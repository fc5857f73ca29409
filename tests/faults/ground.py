"""A small SGLang on a real interpreter, the real agent, and changes of it that can be played again and again."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hsops.agent.protocol import PROTOCOL
from hsops.remote.zipapp import build

REGISTRY = "sglang/srt/models/registry.py"
CACHE = "sglang/srt/models/__pycache__/registry.cpython-311.pyc"
LINKED = "sglang/linked.py"
SHARED = b"shared = True\n"
LONG_AGO = 1_600_000_000 * 10**9 + 123_456_789
Tree = dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Reply:
    """What the agent said: its exit status, events, and the result or the error."""

    exit: int
    events: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)

    @property
    def recovered(self) -> list[str]:
        """``undone`` or ``completed``, for each patch that was put right."""
        return [event["what"] for event in self.events if event["kind"] == "recovered"]


class Ground:
    """A folder with a virtual environment, hsops' state folder and the agent."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state, self.agent = folder, folder / "state", folder / "agent.pyz"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=60)
        (self.site,) = (folder / "venv").glob("lib/python3*/site-packages")
        self.python = folder / "venv/bin/python"
        self.agent.write_bytes(build())
        furnish(self.site, folder / "uv-cache")
        self.save("clean")

    def call(self, verb: str, params: dict[str, Any], *wrap: str, timeout: float = 60) -> Reply:
        """Run a verb; ``wrap``: a command line that runs it (strace ...)."""
        argv = [*wrap, str(self.python), "-I", str(self.agent), verb]
        done = subprocess.run(argv, input=self.request(params), capture_output=True, timeout=timeout, check=False)
        return reply(done.returncode, done.stdout)

    def request(self, params: dict[str, Any]) -> bytes:
        """A request's bytes."""
        lock = {
            "ttl": 600
        }  # a renewal is a call more, at some moment: each run must make the calls of the recorded one
        whole = {"state_dir": str(self.state), "lock": lock, **params}
        return json.dumps({"protocol": PROTOCOL, "params": whole}).encode()

    def inspect(self, place: str = "source") -> Reply:
        """The next hsops command."""
        return self.call("patch-inspect", {"patches": ["p"], "place": place})

    def save(self, name: str) -> None:
        """Keep site and state under a name."""
        kept = self.folder / "kept" / name
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        self.state.mkdir(exist_ok=True)
        subprocess.run(["cp", "-a", str(self.site), str(self.state), str(kept)], check=True, timeout=60)

    def restore(self, name: str) -> None:
        """Site and state as they were saved."""
        kept = self.folder / "kept" / name
        shutil.rmtree(self.site)
        shutil.rmtree(self.state, ignore_errors=True)
        subprocess.run(["cp", "-a", f"{kept}/site-packages", str(self.site.parent)], check=True, timeout=60)
        subprocess.run(["cp", "-a", f"{kept}/state", str(self.folder)], check=True, timeout=60)
        if (self.site / LINKED).exists() and (self.site / LINKED).read_bytes() == SHARED:
            (self.site / LINKED).unlink()
            os.link(self.folder / "uv-cache/linked.py", self.site / LINKED)

    def tree(self) -> Tree:
        """Everything below the site."""
        return tree(self.site)

    def memory(self) -> set[str]:
        """The names of what hsops keeps, without its lock."""
        return {name for name in tree(self.state / "patches") if "lock" not in name} if self.state.exists() else set()


@dataclass(frozen=True)
class Change:
    """Something that the agent does to the tree.

    Args:
        name: of the change, and under which the state before it is saved.
        verb: the agent's.
        params: its parameters, made from the ground as it is before.
        before: the changes that come first.
    """

    name: str
    verb: str
    params: Callable[[Ground], dict[str, Any]]
    before: tuple[Change, ...] = ()

    def prepare(self, ground: Ground) -> dict[str, Any]:
        """The ground as it is before the change, saved under its name; returns the parameters."""
        ground.restore("clean")
        for change in self.before:
            done = ground.call(change.verb, change.params(ground))
            assert done.exit == 0, done
            compile_all(ground.site)
            age(ground.site)
        ground.save(self.name)
        return self.params(ground)


def apply_params(version: str) -> Callable[[Ground], dict[str, Any]]:
    """Two appended modules (one of them a hard link), a new package, of which one file is in this version only."""

    def params(ground: Ground) -> dict[str, Any]:
        wanted: dict[str, bytes] = {}
        for path in (REGISTRY, LINKED):
            wanted[path] = (ground.site / path).read_bytes().split(b"# patch")[0] + f"# patch {version}\n".encode()
        for name in ("__init__", "deep/er", f"only{version}"):
            wanted[f"payload/{name}.py"] = f"x = {version!r}\n".encode() * 20
        edits = [edit(ground.site, path, content) for path, content in wanted.items()]
        return {"patch": "p", "place": "source", "identity": version, "options": {}, "edits": edits}

    return params


def edit(site: Path, path: str, content: bytes | None) -> dict[str, Any]:
    """An edit as the client sends it."""
    held = (site / path).read_bytes() if (site / path).exists() else None
    told = None if content is None else base64.b64encode(content).decode()
    return {"path": path, "content_b64": told, "mode": 0o644, "before_sha256": held and sha256(held)}


def files_params(ground: Ground) -> dict[str, Any]:
    """Of kind ``files``, below a root of its own: a new file, other bytes with another mode, and one that goes."""
    root = ground.site / "sglang"
    edits = [
        {**edit(root, "srt/models/registry.py", b"everything = 'else'\n"), "mode": 0o755, "exact": True},
        edit(root, "new folder/\u00fc and\nnewline.txt", bytes(range(256)) * 40),
        edit(root, "linked.py", None),
    ]
    return {"patch": "p", "place": str(root), "identity": "f", "options": {}, "edits": edits}


def files_revert(ground: Ground) -> dict[str, Any]:
    """Take that out again."""
    return {"patch": "p", "place": str(ground.site / "sglang")}


APPLY = Change("apply", "patch-apply", apply_params("1"))
UPDATE = Change("update", "patch-apply", apply_params("2"), (APPLY,))
REVERT = Change("revert", "patch-revert", lambda _: {"patch": "p", "place": "source"}, (APPLY,))
FILES = Change("files", "patch-apply", files_params)
FILES_REVERT = Change("files, revert", "patch-revert", files_revert, (FILES,))
CHANGES = (APPLY, UPDATE, REVERT, FILES, FILES_REVERT)


def furnish(site: Path, cache: Path) -> None:
    """A few files of an SGLang: odd modes, old time stamps, byte code, a hard link into uv's cache."""
    (site / "sglang/srt/models/__pycache__").mkdir(parents=True)
    cache.mkdir()
    (cache / "linked.py").write_bytes(SHARED)
    os.link(cache / "linked.py", site / LINKED)
    (site / "sglang/__init__.py").write_bytes(b"")
    (site / "sglang/version.py").write_bytes(b'__version__ = "0.5.9"\n')
    (site / REGISTRY).write_bytes(b"class ModelRegistry:\n    pass\n" * 50)
    (site / REGISTRY).chmod(0o640)
    (site / CACHE).write_bytes(b"byte code of the original")
    (site / "bystander.py").write_bytes(b"untouched = True\n")
    if os.geteuid() == 0:
        os.chown(site / REGISTRY, 1234, 4321)
    age(site)


def age(site: Path) -> None:
    """Old time stamps: none may be of the second in which the next change is made, which costs it a call."""
    for path in site.rglob("*"):
        os.utime(path, ns=(LONG_AGO, LONG_AGO))


def compile_all(site: Path) -> None:
    """Byte code as a server that ran in between leaves it."""
    if (site / "payload").exists():
        (site / "payload/__pycache__").mkdir(exist_ok=True)
        (site / "payload/__pycache__/__init__.cpython-311.pyc").write_bytes(b"byte code of the payload")
        (site / CACHE).write_bytes(b"byte code of the patched module")


def tree(root: Path) -> Tree:
    """path -> kind, mode, owner, group, and of a file its hash and time stamp, of a link its target."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        told = path.lstat()
        facts: tuple[Any, ...] = (stat.filemode(told.st_mode), told.st_uid, told.st_gid)
        if path.is_symlink():
            facts += (os.readlink(path),)
        elif path.is_file():
            facts += (sha256(path.read_bytes()), told.st_mtime_ns)
        found[str(path.relative_to(root))] = facts
    return found


def timeless(told: Tree, changed: Iterable[str] = ()) -> Tree:
    """A tree without the time stamps of the files that a change writes: an apply promises none."""
    return {path: facts[:4] if path in set(changed) else facts for path, facts in told.items()}


def reply(code: int, stdout: bytes) -> Reply:
    """The agent's lines."""
    lines = [json.loads(line) for line in stdout.splitlines() if line.startswith(b"{") and line.endswith(b"}")]
    last = lines[-1] if lines else {}
    events = [line["event"] for line in lines if "event" in line]
    return Reply(code, events, last.get("result") or {}, last.get("error") or {})


def sha256(data: bytes) -> str:
    """The hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()
