"""What the host remembers of one patch: its record, the bytes it replaced, and the journal of a change under way.

``<state_dir>/patches/<name>/<site key>/``: ``record.json`` (there while the patch is applied), ``journal.json`` (there
only while a change is under way), ``blobs/<sha256>``. Each step is durable before the next begins, so that a power cut
leaves what a kill at the same place leaves:

1. blobs, then the journal; 2. the patch's folders; 3. all new files under temporary names; 4. renames and removals,
then their folders; 5. the record, which is the moment it counts; 6. folders that a revert leaves empty; 7. the journal
goes.

Up to 5 a crash is undone by the next verb, from 5 on it is completed.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hsops.agent import audit, patch_shapes
from hsops.agent.patch_site import TEMPORARY, Site, remove_file, sha256, sync_folder, write_file
from hsops.agent.protocol import Refusal

Change = "dict[str, Any]"  # {"path", "before": state | None, "after": state | None}
UNDONE, COMPLETED = "undone", "completed"


class Store:
    """The memory of one patch for one site folder.

    Args:
        fence: asked before every step of a change; raises ``lock-lost`` when the host is somebody else's by now.
        told: what the audit log says of the change, but for its files and outcome.
    """

    def __init__(self, state_dir: str, patch: str, site: Site, fence: Callable[[], None] = lambda: None) -> None:
        self.state_dir, self.fence, self.told = state_dir, fence, dict[str, Any]()
        self.key = sha256(os.fsencode(site.root))[:12]
        self.folder = os.path.join(patches_folder(state_dir), patch, self.key)
        self.patch, self.site = patch, site

    def record(self) -> dict[str, Any] | None:
        """What was applied, or None.

        Raises:
            Refusal: ``damaged``: it is not what hsops wrote.
        """
        return self._load("record.json", patch_shapes.check_record)

    def pending(self) -> bool:
        """A change is half done."""
        return os.path.exists(os.path.join(self.folder, "journal.json"))

    def get(self, digest: str) -> bytes:
        """The bytes of a blob, checked against their name.

        Raises:
            Refusal: ``damaged``: they are not there, or others are.
        """
        path = self._blob(digest)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            raise self._damaged(path, "is missing") from None
        if sha256(data) != digest:
            raise self._damaged(path, "does not hold the bytes it is named for")
        return data

    def size(self, digest: str) -> int:
        """Bytes of what is kept; 0 when it is not there."""
        try:
            return os.path.getsize(self._blob(digest))
        except OSError:
            return 0

    def keep(self, data: bytes) -> str:
        """Store bytes, of which ``carry_out`` makes the names durable; returns their sha256."""
        digest = sha256(data)
        if not self._holds(digest):
            os.makedirs(os.path.join(self.folder, "blobs"), mode=0o700, exist_ok=True)
            write_file(self._blob(digest), data)
        return digest

    def carry_out(
        self,
        changes: list[dict[str, Any]],
        record: dict[str, Any] | None,
        *,
        make: Sequence[str] = (),
        remove: Sequence[str] = (),
    ) -> None:
        """Make ``changes`` and then be in the state that ``record`` tells (None: not applied). All or nothing.

        Args:
            changes: files, each with its state before and after; the bytes of both are kept already.
            record: what is true afterwards.
            make: folders to create first, outermost first.
            remove: folders to remove at the end if they are empty then, innermost first.

        Raises:
            OSError: a file could not be written; everything is as before.
            Refusal: ``damaged``, as before too; ``unfinished``: undoing failed too, which the next verb tries again;
                ``lock-lost``: what is half done is the next holder's to undo.
        """
        self._settle()
        journal = {
            "site": self.site.root,
            "after": record and record["serial"],
            "changes": changes,
            "made": [*make],
            "removed": [*remove],
            "change": os.urandom(8).hex(),
            "audit": {**self.told, "files": _brief(changes)},
        }
        try:
            self.fence()
            self._save("journal.json", journal)
            self._make(make, changes)
            self.fence()
            self._commit(record)
        except (OSError, Refusal) as error:
            self.fence()  # an undo is a change too
            if self._undo_after(error) != COMPLETED:  # else it counted already: only the last sync failed
                raise
        with contextlib.suppress(OSError, Refusal):  # the change stands; the next verb tidies up
            self._finish(journal, record, "done")

    def _settle(self) -> None:
        """Make durable what a journal needs, up to the name of state_dir: whoever made it may not have."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        folder = os.path.join(self.folder, "blobs")
        for _ in range(6):
            with contextlib.suppress(FileNotFoundError, PermissionError):  # no blobs; a parent that one may not read
                sync_folder(folder)
            folder = os.path.dirname(folder)

    def recover(self) -> dict[str, Any] | None:
        """Undo a change that a crash interrupted, or complete one that counted already.

        Returns ``what`` (undone | completed) and ``left``, the files that somebody else changed in between and that
        were therefore left alone; None when there was nothing to do.

        Raises:
            Refusal: ``damaged``: what is remembered is not what hsops wrote. Nothing is changed.
            OSError: a file could not be written. The journal stays.
        """
        if not os.path.isdir(self.folder):
            with contextlib.suppress(OSError):  # of a kill between two mkdirs
                os.rmdir(os.path.dirname(self.folder))
            return None
        journal, record = self._load("journal.json", patch_shapes.check_journal), self.record()
        if journal is None:
            self._tidy(record)
            return None
        undone = (record["serial"] if record else None) != journal["after"]
        left = self._undo(journal) if undone else []
        outcome = UNDONE if undone else COMPLETED
        self._finish(journal, record, outcome)
        return {"what": outcome, "left": left}

    def _undo_after(self, error: Exception) -> str:
        try:
            recovered = self.recover()
        except (OSError, Refusal) as second:
            message = f"{_said(error)}; undoing it failed too: {_said(second)}"
            raise Refusal("unfinished", message, folder=self.folder) from None
        return recovered["what"] if recovered else ""

    def _undo(self, journal: dict[str, Any]) -> list[str]:
        """Bring back what was there; returns the files that are neither as before nor as they were to be."""
        found = {change["path"]: self.site.state(change["path"]) for change in journal["changes"]}
        left = [c["path"] for c in journal["changes"] if not _module(c["path"]) and _is_strange(c, found[c["path"]])]
        changed = []
        for change in journal["changes"]:
            path, current = change["path"], found[change["path"]]
            self.site.sweep(path)
            if path in left or _module(path) in left or (current and current[0]) == change["before"]:
                continue
            for folder in self.site.missing_folders(path) if change["before"] else ():
                self.site.make_folder(folder)
            changed.append((path, self._stage(path, change["before"])))
        self._sync({self.site.place(path, state) for path, state in changed})
        return left

    def _stage(self, path: str, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """Write what the file is to be; returns it."""
        if state and _module(path) and not self._holds(state["sha256"]):
            return None  # byte code that is lost is made anew by Python
        if state:
            self.site.stage(path, state, self)
        return state

    def _make(self, folders: Sequence[str], changes: list[dict[str, Any]]) -> None:
        for folder in folders:
            self.fence()
            self.site.make_folder(folder)
        for change in changes:
            self.fence()
            self._stage(change["path"], change["after"])
        self._sync({self._place(change) for change in changes})

    def _place(self, change: dict[str, Any]) -> str:
        self.fence()
        return self.site.place(change["path"], change["after"])

    def _commit(self, record: dict[str, Any] | None) -> None:
        if record is None:
            remove_file(os.path.join(self.folder, "record.json"))
        else:
            self._save("record.json", record)

    def _finish(self, journal: dict[str, Any], record: dict[str, Any] | None, outcome: str) -> None:
        for folder in journal["made"][::-1] if outcome == UNDONE else journal["removed"]:
            self.site.remove_folder(folder)
        for change in journal["changes"]:
            self.site.sweep(change["path"])
        if "change" in journal:  # an older hsops wrote none
            audit.append(self.state_dir, {**journal["audit"], "outcome": outcome}, journal["change"])
        remove_file(os.path.join(self.folder, "journal.json"))
        self._tidy(record)

    def _tidy(self, record: dict[str, Any] | None) -> None:
        """Remove what a kill left in hsops' own folder: temporary files, and bytes that nothing needs."""
        wanted = {entry["original"]["sha256"] for entry in record["files"] if entry["original"]} if record else set()
        blobs = os.path.join(self.folder, "blobs")
        gone = [os.path.join(blobs, name) for name in _names(blobs) if name not in wanted]
        for path in gone + [os.path.join(self.folder, n) for n in _names(self.folder) if n.startswith(TEMPORARY)]:
            os.unlink(path)
        if record is None:
            for folder in (blobs, self.folder, os.path.dirname(self.folder)):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)

    def _sync(self, folders: Iterable[str]) -> None:
        for folder in sorted(folders):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # nothing was there to remove
                sync_folder(folder)

    def _holds(self, digest: str) -> bool:
        try:
            self.get(digest)
        except Refusal:
            return False
        return True

    def _blob(self, digest: str) -> str:
        return os.path.join(self.folder, "blobs", digest)

    def _load(self, name: str, check: patch_shapes.Check) -> dict[str, Any] | None:
        path = os.path.join(self.folder, name)
        try:
            with open(path, "rb") as file:
                return check(json.load(file))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._damaged(path, f"is not what hsops wrote ({type(error).__name__}: {error})") from None

    def _damaged(self, path: str, how: str) -> Refusal:
        return Refusal("damaged", f"{path} {how}", path=path, folder=self.folder, patch=self.patch)

    def _save(self, name: str, value: dict[str, Any]) -> None:
        write_file(os.path.join(self.folder, name), json.dumps(value, indent=1).encode())
        sync_folder(self.folder)


def patches_folder(state_dir: str) -> str:
    """Where patches are remembered."""
    return os.path.join(os.path.abspath(os.path.expanduser(state_dir)), "patches")


def stores(state_dir: str, site: Site) -> dict[str, Store]:
    """Every patch that is remembered here, by name, as it stands for ``site``: perhaps not at all."""
    folder = patches_folder(state_dir)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return {name: Store(state_dir, name, site) for name in names if os.path.isdir(os.path.join(folder, name))}


def interrupted(state_dir: str) -> Iterator[tuple[str, Store]]:
    """Patches with a journal, by name, in whatever folder they are applied."""
    for path in sorted(glob.glob(os.path.join(glob.escape(patches_folder(state_dir)), "*", "*", "journal.json"))):
        name = os.path.basename(os.path.dirname(os.path.dirname(path)))
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError), open(path, "rb") as file:
            store = Store(state_dir, name, Site(json.load(file)["site"]))
            if store.folder == os.path.dirname(path):  # else it is damaged: told to those who work in its folder
                yield name, store


def _brief(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Files with their sha256 before and after, for the audit log; byte code is not told."""
    return [
        {"path": one["path"], **{when: one[when] and one[when]["sha256"] for when in ("before", "after")}}
        for one in changes
        if not _module(one["path"])
    ]


def _is_strange(change: dict[str, Any], current: tuple[dict[str, Any], bytes] | None) -> bool:
    digests = [state and state["sha256"] for state in (change["before"], change["after"])]
    return (current and current[0]["sha256"]) not in digests


def _module(path: str) -> str:
    """The module that byte code at ``path`` is of; "" for any other file."""
    folder, _, name = path.rpartition("/")
    if folder.rpartition("/")[2] != "__pycache__" or not name.endswith(".pyc"):
        return ""
    return f"{folder[: -len('__pycache__')]}{name[:-4].rpartition('.')[0]}.py"


def _names(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


def _said(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror or error}"
    return str(error)
