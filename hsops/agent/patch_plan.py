"""From edits to changes of files and back: what a patch did, judged against what lies there now."""

from __future__ import annotations

import base64
import os
from itertools import accumulate
from typing import Any, NamedTuple

from hsops.agent.patch_site import Site, sha256, too_large
from hsops.agent.patch_store import Store
from hsops.agent.protocol import Refusal

SEEN = ("sha256", "mode", "uid", "gid")  # of a state, what a plan rests on
AS_IT_LIES = "as-it-lies"


class Edit(NamedTuple):
    """One file's wanted state.

    Args:
        path: relative to the site folder.
        content: the new bytes; None removes the file.
        mode: permission bits of a new file.
        before: sha256 of what the client saw; None: no file.
        original: what a revert brings back: bytes, None for no file, or ``AS_IT_LIES``.
        exact: ``mode`` counts for a file that is there already too.
    """

    path: str
    content: bytes | None
    mode: int
    before: str | None
    original: bytes | str | None
    exact: bool = False


def parse_edit(raw: dict[str, Any]) -> Edit:
    """An edit from its JSON."""
    original: bytes | str | None = AS_IT_LIES
    if "original_b64" in raw:
        original = _bytes(raw["original_b64"])
    content, exact = _bytes(raw["content_b64"]), raw.get("exact", False)
    return Edit(raw["path"], content, raw["mode"], raw["before_sha256"], original, exact)


def check(edits: list[Edit], site: Site, store: Store) -> None:
    """Every path is allowed and every file is as the client saw it.

    Raises:
        Refusal: ``escapes-root``, ``changed-meanwhile``; ``not-a-file``: a file stands where a folder is to be, or a
            link is to be removed; ``same-file``: a link leads from one path to another, be it one that an earlier apply
            named the file by.
    """
    files = {site.path(entry["path"]): entry["path"] for entry in (store.record() or {"files": []})["files"]}
    made = {edit.path for edit in edits if edit.content is not None}
    for edit in edits:
        _check_folders(edit.path, site, made)
        if edit.content is None and os.path.islink(os.path.join(site.root, edit.path)):
            said = f"{edit.path} is a link: to remove it would remove the file it leads to"
            raise Refusal("not-a-file", said, path=edit.path)
        other = files.setdefault(site.path(edit.path), edit.path)
        if other != edit.path:
            raise Refusal("same-file", f"{other} and {edit.path} are one file, by a link", path=edit.path)
        data = site.read(edit.path)
        if (None if data is None else sha256(data)) != edit.before:
            raise Refusal("changed-meanwhile", f"{edit.path} changed since it was looked at", path=edit.path)


def check_size(edits: list[Edit], store: Store) -> None:
    """What goes in can come out: a revert asks for the files as they are then, and as they were.

    Raises:
        Refusal: ``file-too-large``.
    """
    held = {entry["path"]: entry["original"] for entry in (store.record() or {"files": []})["files"]}
    sizes = {}
    for edit in edits:
        old = held.get(edit.path)
        found = store.size(old["sha256"]) if old else len(store.site.read(edit.path) or b"")
        sizes[edit.path] = len(edit.content or b"") + max(found, len(edit.original or b""))
    too_large(sizes)


def check_writable(paths: list[str], site: Site) -> None:
    """Every file can be replaced by one of the same owner.

    Raises:
        Refusal: ``not-writable``; ``not-a-file``: a file stands where a folder is to be.
    """
    for path in paths:
        _check_folders(path, site, set())
        if why := site.unwritable(path):
            raise Refusal("not-writable", why, path=path)


def _check_folders(path: str, site: Site, made: set[str]) -> None:
    for folder in accumulate(path.split("/")[:-1], "{}/{}".format):
        full = site.path(folder)
        if folder in made or (os.path.exists(full) and not os.path.isdir(full)):
            said = f"{folder} is a file, and {path} would need a folder there"
            raise Refusal("not-a-file", said, path=folder)


def unexpected(expect: dict[str, Any], record: dict[str, Any] | None, site: Site, version: str | None) -> list[str]:
    """What is not as the client saw it: files, or words for the rest; empty when all is.

    ``expect``: ``serial`` of the record (null: none), ``sglang``, ``read`` (patterns), and the answers to them:
    ``files`` {path: {``sha256``, ``mode``, ``uid``, ``gid``} or null} and ``links``; ``ours``: where files lie that the
    client's own command changed since.
    """
    found = {path: site.state(path) for path in wanted(site, expect["read"])}
    now = {path: told and {key: told[0][key] for key in SEEN} for path, told in found.items()}
    led, then = links(site, expect["read"]), expect["files"]
    others = {path for path in now.keys() | then.keys() if now.get(path) != then.get(path)}
    others |= {path for path in led.keys() | expect["links"].keys() if led.get(path) != expect["links"].get(path)}
    differ = sorted(path for path in others if site.path(path) not in expect["ours"])
    if (record["serial"] if record else None) != expect["serial"]:
        differ.insert(0, "what hsops applied")
    if (version or "") != expect["sglang"]:
        differ.insert(0, "SGLang's version")
    return differ


def wanted(site: Site, patterns: list[str]) -> list[str]:
    """The files that ``patterns`` name; a plain path also when nothing is there."""
    return sorted({path for pattern in patterns for path in (site.match(pattern) if "*" in pattern else [pattern])})


def links(site: Site, patterns: list[str]) -> dict[str, str]:
    """Of the files that ``patterns`` name and the folders of those with ``*``: which lie elsewhere by a link, where."""
    folders = {pattern.rpartition("/")[0] for pattern in patterns if "*" in pattern} - {""}
    paths = sorted({*wanted(site, patterns), *folders})
    return {path: full for path in paths if (full := site.path(path)) != os.path.join(site.root, path)}


def applying(edits: list[Edit], store: Store) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """The changes of an apply, the record's entries, and the folders that are the patch's own (outermost first)."""
    record = store.record() or {"files": [], "folders": []}
    held = {entry["path"]: entry for entry in record["files"]}
    changes: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    folders = list(record["folders"])
    for edit in edits:
        ours = _is_applied(held.get(edit.path), store.site)
        change, original = _edited(edit, held.get(edit.path, {}).get("original"), ours, store)
        entry = {"path": edit.path, "original": original, "after": change["after"], "cache": False}
        entries.append({**entry, "exact": True} if edit.exact else entry)
        entries += _held_caches(edit.path, held) if ours else _present_caches(edit.path, store)
        if not _same(change["before"], change["after"]):
            changes += [change, *_without_caches(edit.path, store)]
            folders += [folder for folder in store.site.missing_folders(edit.path) if folder not in folders]
    for path in sorted(held.keys() - {edit.path for edit in edits}):  # the new version has no such file
        if not held[path]["cache"] and _is_applied(held[path], store.site):
            changes += [_change(path, held[path]["original"], store), *_without_caches(path, store)]
    return changes, entries, folders + [f for f in _adopted(entries, store.site) if f not in folders]


def reverting(record: dict[str, Any], judged: dict[str, Any], store: Store) -> list[dict[str, Any]]:
    """The changes that bring back what was there before the patch. A file of another SGLang is left alone."""
    held = {entry["path"]: entry for entry in record["files"]}
    changes: list[dict[str, Any]] = []
    for path, state in judged["files"].items():
        if state == "replaced":
            continue
        if state != "original":
            changes.append(_change(path, held[path]["original"], store))
        old = {entry["path"]: entry["original"] for entry in _held_caches(path, held)}
        caches = sorted({*store.site.caches(path), *old})
        changes += [_change(cache, old.get(cache), store) for cache in caches]
    return [change for change in changes if change["before"] != change["after"]]


def judge(record: dict[str, Any] | None, site: Site, version: str | None) -> dict[str, Any]:
    """How a recorded patch stands.

    ``files`` tells each file: ``applied``, ``original`` (undone by somebody), ``missing``, ``edited``, or ``replaced``:
    none of the first two, but SGLang's version is another than at apply, so an upgrade brought it or took it away.
    """
    if record is None:
        return {"state": "absent", "identity": None, "options": None, "files": {}}
    replaced = record["sglang"] != version
    files = {}
    for entry in record["files"]:
        if not entry["cache"]:
            state = _entry_state(entry, site)
            files[entry["path"]] = "replaced" if state in ("edited", "missing") and replaced else state
    told = {key: record[key] for key in ("serial", "identity", "options", "sglang", "applied")}
    return {"state": _overall(set(files.values())), **told, "files": files}


def originals(store: Store) -> dict[str, dict[str, Any] | None]:
    """The files of the record as they were before the patch: {``content_b64``, ``mode``, ``sha256``} or None."""
    record = store.record() or {"files": []}
    found: dict[str, dict[str, Any] | None] = {}
    for entry in record["files"]:
        old = entry["original"]
        if not entry["cache"]:
            content = old and base64.b64encode(store.get(old["sha256"])).decode()
            found[entry["path"]] = old and {"content_b64": content, "mode": old["mode"], "sha256": old["sha256"]}
    return found


def length(found: dict[str, dict[str, Any] | None]) -> int:
    """Bytes of ``originals``, about."""
    return sum(len(one["content_b64"]) * 3 // 4 for one in found.values() if one)


def _overall(states: set[str]) -> str:
    if "edited" in states:
        return "foreign"
    if states <= {"applied"}:
        return "applied"
    return "partial" if "applied" in states else "absent"


def _entry_state(entry: dict[str, Any], site: Site) -> str:
    found = site.state(entry["path"])
    told = _told(found and found[0], entry)
    for name, state in (("applied", entry["after"]), ("original", entry["original"])):
        if told == _told(state, entry):
            return name
    return "missing" if found is None else "edited"


def _told(state: dict[str, Any] | None, entry: dict[str, Any]) -> tuple[Any, ...] | None:
    """What of a state the entry is judged by."""
    return (state["sha256"], state["mode"] if entry.get("exact") else None) if state else None


def _adopted(entries: list[dict[str, Any]], site: Site) -> list[str]:
    """Folders that lie there already and hold nothing but what a revert takes away: the patch's own, record or not."""
    gone = {entry["path"] for entry in entries if entry["original"] is None}
    folders = sorted({path.rpartition("/")[0] for path in gone} - {""})
    return [folder for folder in folders if (held := site.match(f"{folder}/*")) and gone.issuperset(held)]


def _is_applied(entry: dict[str, Any] | None, site: Site) -> bool:
    return entry is not None and _entry_state(entry, site) == "applied"


def _edited(
    edit: Edit, original: dict[str, Any] | None, ours: bool, store: Store
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The change of one edit and what a revert brings back: the record's original while the file is our own work."""
    after = None if edit.content is None else {"sha256": store.keep(edit.content), "mode": edit.mode}
    change = _change(edit.path, after, store)
    before = change["before"]
    if after and before:
        after |= {key: before[key] for key in (("uid", "gid") if edit.exact else ("mode", "uid", "gid"))}
    if ours or (original and isinstance(edit.original, bytes) and sha256(edit.original) == original["sha256"]):
        return change, original
    if isinstance(edit.original, str) or (before and edit.original and sha256(edit.original) == before["sha256"]):
        return change, before
    if edit.original is None:
        return change, None
    like = {key: before[key] for key in ("mode", "uid", "gid")} if before else {"mode": edit.mode}
    return change, {**like, "sha256": store.keep(edit.original)}


def _present_caches(path: str, store: Store) -> list[dict[str, Any]]:
    """Record entries for the byte code of an original: it comes back with it."""
    changes = _without_caches(path, store)
    return [{"path": c["path"], "original": c["before"], "after": None, "cache": True} for c in changes]


def _held_caches(path: str, held: dict[str, Any]) -> list[dict[str, Any]]:
    folder, _, name = path.rpartition("/")
    prefix = f"{folder}/__pycache__/{name[:-3]}." if folder else f"__pycache__/{name[:-3]}."
    return [entry for entry in held.values() if entry["cache"] and entry["path"].startswith(prefix)]


def _without_caches(path: str, store: Store) -> list[dict[str, Any]]:
    """The removal of what Python compiled of a module: its byte code must not outlive it."""
    return [_change(cache, None, store) for cache in store.site.caches(path)]


def _change(path: str, after: dict[str, Any] | None, store: Store) -> dict[str, Any]:
    found = store.site.state(path)
    if found:
        store.keep(found[1])
    return {"path": path, "before": found[0] if found else None, "after": after}


def _same(before: dict[str, Any] | None, after: dict[str, Any] | None) -> bool:
    if before is None or after is None:
        return before is after
    return all(before[key] == after[key] for key in ("sha256", "mode"))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
