"""What a power cut could lose, judged on a trace: is each step on the disk before the next that relies on it begins?

A file system may keep back what was not synced, in any order: the bytes of a file until fsync of the file, a name that
was made, renamed or removed until fsync of its folder. The model knows no more than that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.syscalls import Call

BYTES = ("write", "pwrite64", "writev", "ftruncate", "fchmod", "fchown", "utimensat", "fsetxattr")
DRESS = ("chmod", "chown", "lchown", "fchmodat", "fchownat")
NAMES = ("rename", "unlink", "mkdir", "rmdir")


@dataclass
class Disk:
    """What is not on the disk yet: files with their bytes, folders with their names."""

    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)

    def see(self, call: Call) -> None:
        """Take in one call that did not fail."""
        path = call.paths[0] if call.paths else ""
        if call.name in ("fsync", "fdatasync"):
            self.files.discard(path)
            self.folders.discard(path)
        elif call.name in BYTES:
            self.files.add(path)
        elif call.name in DRESS:
            self.folders.add(path)
        elif call.name in NAMES or _makes(call):
            self.folders |= {os.path.dirname(one) for one in call.paths}
            self._forget(call, path)

    def _forget(self, call: Call, path: str) -> None:
        if call.name in ("unlink", "rmdir"):
            self.files.discard(path)
            self.folders.discard(path)
        elif call.name == "rename" and path in self.files:
            self.files.remove(path)
            self.files.add(call.paths[1])

    def below(self, root: Path | str) -> list[str]:
        """What is not on the disk yet, below ``root``."""
        return sorted(path for path in self.files | self.folders if f"{path}/".startswith(f"{root}/"))


def breaches(trace: Iterable[Call], site: Path, state: Path) -> Iterator[str]:
    """Each step of a change that begins before what it relies on is on the disk; none is what is wanted.

    Args:
        trace: of one verb.
        site: the patched tree.
        state: hsops' own folder.
    """
    disk = Disk()
    for call in trace:
        if call.failed or not call.paths:
            continue
        target = call.paths[-1]
        if call.name == "rename" and call.paths[0] in disk.files:
            yield f"{call}: its bytes are not on the disk"
        for what, missing in _relied_on(call, target, disk, site, state):
            if missing:
                yield f"{call}: {what} first: {', '.join(missing)}"
        if call.name in ("fsync", "fdatasync") or not _is_beside(call, state):
            disk.see(call)
    if missing := disk.below(site):
        yield f"at the end: {', '.join(missing)}"


def _relied_on(call: Call, target: str, disk: Disk, site: Path, state: Path) -> Iterator[tuple[str, list[str]]]:
    changes = call.name in NAMES or _makes(call)
    name = os.path.basename(target)
    if changes and f"{target}/".startswith(f"{site}/"):
        yield "the journal and what it needs", disk.below(state)
    if call.name in ("rename", "unlink") and name == "record.json":
        yield "the tree", disk.below(site)
    if call.name == "unlink" and name == "journal.json":
        yield "the tree and the record", [*disk.below(site), *_own(disk, target)]
        yield "the line of the audit log", sorted(path for path in disk.files if _is_audit(path, state))
    if call.name == "unlink" and os.path.basename(os.path.dirname(target)) == "blobs" and not _temporary(name):
        yield "that the journal is gone", _own(disk, os.path.dirname(target))


def _own(disk: Disk, path: str) -> list[str]:
    return [folder for folder in disk.folders if folder == os.path.dirname(path)]


def _is_beside(call: Call, state: Path) -> bool:
    """The lock and what else is kept in the state folder: a change does not rely on it."""
    parts = Path(call.paths[-1]).parts[len(state.parts) :]
    if call.name != "unlink" and _is_audit(call.paths[-1], state):
        return False
    return call.paths[-1].startswith(f"{state}/") and call.name != "mkdir" and (len(parts) < 3 or parts[0] != "patches")


def _is_audit(path: str, state: Path) -> bool:
    """The log, its head, and the head's temporary file."""
    return os.path.dirname(path) == str(state) and (
        os.path.basename(path).startswith("audit.") or _temporary(os.path.basename(path))
    )


def _makes(call: Call) -> bool:
    return call.name in ("open", "openat") and "O_CREAT" in call.text


def _temporary(name: str) -> bool:
    return name.startswith(".hsops-tmp-")
