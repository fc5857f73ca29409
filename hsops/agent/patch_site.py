"""Files below SGLang's site folder: told as plain states, written whole, never outside it.

A *state* is ``{"sha256", "mode", "mtime_ns", "uid", "gid"}``, or None where no file is. The bytes behind a sha256 come
from a ``Blobs`` store. Replacing has two steps, so that whatever can run out of room does so before anything is seen:
``stage`` writes a temporary name beside the target, ``place`` renames it. A reader sees the old file or the new one,
and a hard link (uv links packages into its cache) is cut, not written through. Durable is what ``sync`` has returned
for.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import hashlib
import os
import stat as stat_
from typing import Any, Protocol

from hsops.agent.protocol import Refusal

State = "dict[str, Any]"
_NAME_MAX = 255  # bytes; told where the folders above are not there yet, too
LARGEST = 128 << 20  # bytes of all that one patch changes and what was there before: it travels in one answer
TEMPORARY = ".hsops-tmp-"  # begins the name of every temporary file


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
            Refusal: ``escapes-root``: it, or what a link in it leads to, is not below the site folder;
                ``name-too-long``.
        """
        parts = relative.split("/")
        if not relative or "\0" in relative or any(part in ("", ".", "..") for part in parts):
            raise Refusal("escapes-root", f"{relative!r} is not a plain path below {self.root}", path=relative)
        if max(len(os.fsencode(part)) for part in parts) > _NAME_MAX:
            raise _too_long(relative)
        full = os.path.join(self.root, *parts)
        if os.path.commonpath((os.path.realpath(full), self.root)) != self.root:
            raise Refusal("escapes-root", f"{relative} leads out of {self.root}", path=relative)
        return os.path.realpath(full)

    def read(self, relative: str) -> bytes | None:
        """The file's bytes, or None when there is no file.

        Raises:
            Refusal: ``not-a-file``: a folder, a pipe or a device lies there.
        """
        found = self.state(relative)
        return found and found[1]

    def state(self, relative: str) -> tuple[dict[str, Any], bytes] | None:
        """The file's state and its bytes, or None. Raises as ``read``."""
        path = self.path(relative)
        try:
            _check_regular(path, os.stat(path).st_mode)  # before it is opened: a device may act on that
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _too_long(relative) if error.errno == errno.ENAMETOOLONG else error from None
        with os.fdopen(handle, "rb") as file:
            stat = os.fstat(handle)
            _check_regular(path, stat.st_mode)
            data = file.read()
        facts = {"mode": stat.st_mode & 0o7777, "mtime_ns": stat.st_mtime_ns, "uid": stat.st_uid, "gid": stat.st_gid}
        return {"sha256": sha256(data), **facts}, data

    def stage(self, relative: str, state: dict[str, Any], blobs: Blobs) -> None:
        """Write the file's next bytes, with mode and owner, durably under its temporary name."""
        _write(self.path(relative), blobs.get(state["sha256"]), state)

    def place(self, relative: str, state: dict[str, Any] | None) -> str:
        """Make the file be what was staged, or remove it when ``state`` is None; returns the folder to ``sync``."""
        path = self.path(relative)
        if state is None:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
        else:
            _rename(path)
        return os.path.dirname(path)

    def sweep(self, relative: str) -> None:
        """Remove what ``stage`` wrote and ``place`` did not take."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(_temporary(self.path(relative)))

    def match(self, pattern: str) -> list[str]:
        """Relative paths of the files that ``folder/*.suffix`` matches; only the last part may hold ``*``."""
        folder, _, name = pattern.rpartition("/")
        full = self.path(folder) if folder else self.root
        if not os.path.isdir(full):
            return []
        names = [entry.name for entry in os.scandir(full) if entry.is_file() and fnmatch.fnmatch(entry.name, name)]
        found = sorted(one for one in names if not one.startswith(TEMPORARY))
        return [f"{folder}/{one}" if folder else one for one in found]

    def caches(self, relative: str) -> list[str]:
        """The byte code that Python keeps of the module ``relative`` beside it."""
        folder, _, name = relative.rpartition("/")
        if not name.endswith(".py"):
            return []
        pattern = f"__pycache__/{glob.escape(name[:-3])}.*.pyc"
        return self.match(f"{folder}/{pattern}" if folder else pattern)

    def missing_folders(self, relative: str) -> list[str]:
        """The folders above ``relative`` that are not there, outermost first."""
        parts = relative.split("/")[:-1]
        folders = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        return [folder for folder in folders if not os.path.isdir(self.path(folder))]

    def make_folder(self, relative: str) -> None:
        """Create one folder durably, for everybody to read, with the owner of its parent."""
        path = self.path(relative)
        parent = os.path.dirname(path)
        if not os.path.isdir(path):  # a file there is somebody's: it fails, with its mode as it was
            os.mkdir(path)
        os.chmod(path, 0o755)  # noqa: S103 - the server may run as another user than the one with this umask
        if os.geteuid() == 0:
            like = os.stat(parent)
            os.chown(path, like.st_uid, like.st_gid)
        sync_folder(parent)

    def remove_folder(self, relative: str) -> bool:
        """Remove a folder and its ``__pycache__`` durably if they are empty; True when it is gone.

        Raises:
            OSError: it is empty and cannot be removed.
        """
        path = self.path(relative)
        _remove_empty(os.path.join(path, "__pycache__"))
        _remove_empty(path)
        if os.path.isdir(path):
            return False
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            sync_folder(os.path.dirname(path))
        return True

    def unwritable(self, relative: str) -> str:
        """Why the file cannot be replaced by one of the same owner; empty when it can."""
        path = self.path(relative)
        folder = os.path.dirname(path)
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
            return f"{folder} is on a read-only file system" if read_only else f"{folder} is not writable for this user"
        if os.geteuid() == 0 or not os.path.exists(path):
            return ""
        told = os.stat(path)
        if told.st_uid != os.geteuid() or told.st_gid not in {os.getegid(), *os.getgroups()}:
            return f"{path} belongs to user {told.st_uid}, group {told.st_gid}, which this user cannot give a new file"
        return ""


def too_large(sizes: dict[str, int], more: int = 0) -> None:
    """Refuse what could not be looked at, and so not be reverted: ``sizes`` by path, and ``more`` bytes.

    Raises:
        Refusal: ``file-too-large``.
    """
    if sum(sizes.values()) + more > LARGEST:
        path = max(sizes, key=lambda name: sizes[name], default="")
        held = f"{path} has {sizes[path] >> 20} MiB" if path else f"the originals have {more >> 20} MiB"
        said = f"{held}: what a patch changes, and what was there before, have at most {LARGEST >> 20} MiB together"
        raise Refusal("file-too-large", said, path=path)


def sha256(data: bytes) -> str:
    """The hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def write_file(path: str, data: bytes, mode: int = 0o600) -> None:
    """Write a file of hsops' own whole or not at all; its name is durable when its folder is synced."""
    _write(path, data, {"mode": mode})
    _rename(path)


def remove_file(path: str) -> None:
    """Remove a file durably."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
        sync_folder(os.path.dirname(path))


def sync_folder(folder: str) -> None:
    """Make renames and removals in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_empty(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
            raise


def _too_long(path: str) -> Refusal:
    said = f"{path[:40]}... ({len(os.fsencode(path))} bytes) is longer, or a name in it, than the file system takes"
    return Refusal("name-too-long", said, path=path)


def _check_regular(path: str, mode: int) -> None:
    if not stat_.S_ISREG(mode):
        kind = _KINDS.get(stat_.S_IFMT(mode), "no file")
        raise Refusal("not-a-file", f"{path} is {kind}, where a file is expected", path=path)


_KINDS = {
    stat_.S_IFDIR: "a folder",
    stat_.S_IFIFO: "a named pipe",
    stat_.S_IFSOCK: "a socket",
    stat_.S_IFCHR: "a device",
    stat_.S_IFBLK: "a device",
}


def _temporary(path: str) -> str:
    """Beside the target; of fixed length, since a file's name may be as long as names can be."""
    folder, name = os.path.split(path)
    return os.path.join(folder, TEMPORARY + sha256(os.fsencode(name))[:16])


def _write(path: str, data: bytes, state: dict[str, Any]) -> None:
    temporary = _temporary(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # a killed agent's: it may have any owner and mode
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            _dress(handle, path, state)
            os.fsync(handle)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _rename(path: str) -> None:
    try:
        os.replace(_temporary(path), path)
    except OSError as error:
        error.filename, error.filename2 = path, None  # the file that a person knows
        raise


def _dress(handle: int, path: str, state: dict[str, Any]) -> None:
    """Owner, mode, extended attributes and time stamp; the mode after the owner, which clears setuid."""
    told = os.stat(path) if os.path.exists(path) else None
    if os.geteuid() == 0:
        like = os.stat(os.path.dirname(path))
        os.fchown(handle, state.get("uid", like.st_uid), state.get("gid", like.st_gid))
    elif state.get("gid", -1) not in (-1, os.fstat(handle).st_gid):
        os.fchown(handle, -1, state["gid"])
    with contextlib.suppress(OSError):  # a file system without attributes, or one that only the system sets
        for name in os.listxattr(path) if told else ():
            os.setxattr(handle, name, os.getxattr(path, name))
    os.fchmod(handle, state["mode"])
    if "mtime_ns" in state:
        os.utime(handle, ns=(state["mtime_ns"], state["mtime_ns"]))
    elif told and path.endswith(".py") and int(os.fstat(handle).st_mtime) == int(told.st_mtime):
        # Python takes byte code for current by its source's second and size: both files may have the same
        os.utime(handle, ns=(told.st_mtime_ns + 10**9, told.st_mtime_ns + 10**9))
