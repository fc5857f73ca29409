"""Files below SGLang's site folder: told as plain states, written whole, never outside it.

A *state* is ``{"sha256", "mode", "mtime_ns", "uid", "gid"}``, or None where no file is. The bytes behind a sha256 come
from a ``Blobs`` store. Replacing goes through a temporary name beside the target and a rename: a reader sees the old
file or the new one, and a hard link (uv links packages into its cache) is cut, not written through.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
from typing import Any, Protocol

from hsops.agent.protocol import Refusal

State = "dict[str, Any]"


class Blobs(Protocol):
    """Bytes by their sha256."""

    def get(self, sha256: str) -> bytes:
        """The bytes."""
        ...


class Site:
    """One folder, normally ``site-packages``. All paths are relative to it, with ``/``."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)

    def path(self, relative: str) -> str:
        """The absolute path of ``relative``.

        Raises:
            Refusal: ``escapes-root``: it, or what a link in it leads to, is not below the site folder.
        """
        parts = relative.split("/")
        if not relative or "\0" in relative or any(part in ("", ".", "..") for part in parts):
            raise Refusal("escapes-root", f"{relative!r} is not a plain path below {self.root}", path=relative)
        full = os.path.join(self.root, *parts)
        if os.path.commonpath((os.path.realpath(full), self.root)) != self.root:
            raise Refusal("escapes-root", f"{relative} leads out of {self.root}", path=relative)
        return os.path.realpath(full)

    def read(self, relative: str) -> bytes | None:
        """The file's bytes, or None when there is no file."""
        try:
            with open(self.path(relative), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def state(self, relative: str) -> tuple[dict[str, Any], bytes] | None:
        """The file's state and its bytes, or None."""
        data = self.read(relative)
        if data is None:
            return None
        stat = os.stat(self.path(relative))
        facts = {"mode": stat.st_mode & 0o7777, "mtime_ns": stat.st_mtime_ns, "uid": stat.st_uid, "gid": stat.st_gid}
        return {"sha256": sha256(data), **facts}, data

    def put(self, relative: str, state: dict[str, Any] | None, blobs: Blobs) -> None:
        """Make the file be ``state``: written whole, or removed when None."""
        path = self.path(relative)
        self.sweep(relative)
        if state is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        else:
            _replace(path, blobs.get(state["sha256"]), state)
        with contextlib.suppress(FileNotFoundError):  # nothing to remove where even the folder is missing
            sync_folder(os.path.dirname(path))

    def sweep(self, relative: str) -> None:
        """Remove the temporary file that a killed ``put`` may have left."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_temporary(self.path(relative)))

    def match(self, pattern: str) -> list[str]:
        """Relative paths of the files that ``folder/*.suffix`` matches; only the last part may hold ``*``."""
        folder, _, name = pattern.rpartition("/")
        full = self.path(folder) if folder else self.root
        if not os.path.isdir(full):
            return []
        found = [entry.name for entry in os.scandir(full) if entry.is_file() and fnmatch.fnmatch(entry.name, name)]
        return sorted(f"{folder}/{name}" if folder else name for name in found)

    def caches(self, relative: str) -> list[str]:
        """The byte code that Python keeps of the module ``relative``."""
        folder, _, name = relative.rpartition("/")
        if not name.endswith(".py"):
            return []
        return self.match(f"{folder}/__pycache__/{name[:-3]}.*.pyc" if folder else f"__pycache__/{name[:-3]}.*.pyc")

    def missing_folders(self, relative: str) -> list[str]:
        """The folders above ``relative`` that are not there, outermost first."""
        parts = relative.split("/")[:-1]
        folders = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        return [folder for folder in folders if not os.path.isdir(self.path(folder))]

    def make_folder(self, relative: str) -> None:
        """Create one folder, with the owner of its parent."""
        path = self.path(relative)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o755)
        _own(path, os.stat(os.path.dirname(path)))
        sync_folder(os.path.dirname(path))

    def remove_folder(self, relative: str) -> bool:
        """Remove a folder and its ``__pycache__`` if they are empty; True when it is gone."""
        path = self.path(relative)
        for folder in (os.path.join(path, "__pycache__"), path):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        return not os.path.isdir(path)

    def unwritable(self, relative: str) -> str:
        """Why the file's folder cannot be changed; empty when it can."""
        folder = os.path.dirname(self.path(relative))
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        if os.access(folder, os.W_OK | os.X_OK):
            return ""
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        return f"{folder} is on a read-only file system" if read_only else f"{folder} is not writable for this user"


def sha256(data: bytes) -> str:
    """The hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def write_file(path: str, data: bytes, mode: int = 0o600) -> None:
    """Write a file of hsops' own whole or not at all."""
    _replace(path, data, {"mode": mode})
    sync_folder(os.path.dirname(path))


def sync_folder(folder: str) -> None:
    """Make renames and removals in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _temporary(path: str) -> str:
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.hsops-tmp")


def _replace(path: str, data: bytes, state: dict[str, Any]) -> None:
    temporary = _temporary(path)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        os.fchmod(handle, state["mode"])
        if os.geteuid() == 0:
            owner = os.stat(os.path.dirname(path))
            os.fchown(handle, state.get("uid", owner.st_uid), state.get("gid", owner.st_gid))
        file.flush()
        os.fsync(handle)
    if "mtime_ns" in state:
        os.utime(temporary, ns=(state["mtime_ns"], state["mtime_ns"]))
    os.replace(temporary, path)


def _own(path: str, like: os.stat_result) -> None:
    if os.geteuid() == 0:
        os.chown(path, like.st_uid, like.st_gid)
