"""What the host remembers of one patch: its record, the bytes it replaced, and the journal of a change under way.

``<state_dir>/patches/<name>/<site key>/``: ``record.json`` (there while the patch is applied), ``journal.json`` (there
only while a change is under way), ``blobs/<sha256>``. A change is: blobs, journal, files, record, journal gone. The
record's rename is the moment it counts: before it a crash is undone by the next verb, after it the change stands.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from typing import Any

from hsops.agent.patch_site import Site, sha256, write_file

Change = "dict[str, Any]"  # {"path", "before": state | None, "after": state | None}


class Store:
    """The memory of one patch for one site folder."""

    def __init__(self, state_dir: str, patch: str, site: Site) -> None:
        self.folder = os.path.join(patches_folder(state_dir), patch, sha256(os.fsencode(site.root))[:12])
        self.site = site

    def record(self) -> dict[str, Any] | None:
        """What was applied, or None."""
        return self._load("record.json")

    def get(self, digest: str) -> bytes:
        """The bytes of a blob, checked against their name."""
        with open(self._blob(digest), "rb") as file:
            data = file.read()
        if sha256(data) != digest:
            raise OSError(f"{self._blob(digest)} is damaged")
        return data

    def keep(self, data: bytes) -> str:
        """Store bytes; returns their sha256."""
        digest = sha256(data)
        if not os.path.exists(self._blob(digest)):
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
        """
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        journal = {
            "after": record and record["serial"],
            "changes": changes,
            "made": list(make),
            "removed": [folder for folder in remove if os.path.isdir(self.site.path(folder))],
        }
        self._save("journal.json", journal)
        try:
            for folder in make:
                self.site.make_folder(folder)
            for change in changes:
                self.site.put(change["path"], change["after"], self)
            for folder in remove:
                self.site.remove_folder(folder)
            self._commit(record)
        except OSError:
            self.recover()
            raise
        self._finish()

    def recover(self) -> bool:
        """Undo a change that a crash interrupted, or tidy up behind one that was complete; True when it undid one."""
        journal = self._load("journal.json")
        if journal is None:
            return False
        record = self.record()
        undone: bool = (record["serial"] if record else None) != journal["after"]
        if undone:
            for folder in reversed(journal["removed"]):
                self.site.make_folder(folder)
            for change in reversed(journal["changes"]):
                self.site.put(change["path"], change["before"], self)
            for folder in reversed(journal["made"]):
                self.site.remove_folder(folder)
        self._finish()
        return undone

    def _commit(self, record: dict[str, Any] | None) -> None:
        if record is None:
            self._remove("record.json")
        else:
            self._save("record.json", record)

    def _finish(self) -> None:
        self._remove("journal.json")
        record = self.record()
        wanted = {entry["original"]["sha256"] for entry in record["files"] if entry["original"]} if record else set()
        blobs = os.path.join(self.folder, "blobs")
        for name in os.listdir(blobs) if os.path.isdir(blobs) else ():
            if name not in wanted:
                os.unlink(os.path.join(blobs, name))
        if record is None:
            for folder in (blobs, self.folder):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)

    def _blob(self, digest: str) -> str:
        return os.path.join(self.folder, "blobs", digest)

    def _load(self, name: str) -> dict[str, Any] | None:
        try:
            with open(os.path.join(self.folder, name), encoding="utf-8") as file:
                loaded: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return None
        return loaded

    def _save(self, name: str, value: dict[str, Any]) -> None:
        write_file(os.path.join(self.folder, name), json.dumps(value, indent=1).encode())

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.folder, name))


def patches_folder(state_dir: str) -> str:
    """Where patches are remembered."""
    return os.path.join(os.path.expanduser(state_dir), "patches")


def stores(state_dir: str, site: Site) -> dict[str, Store]:
    """Every patch that is remembered for ``site``, by name."""
    folder = patches_folder(state_dir)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    found = {name: Store(state_dir, name, site) for name in names if os.path.isdir(os.path.join(folder, name))}
    return {name: store for name, store in found.items() if os.path.isdir(store.folder)}
