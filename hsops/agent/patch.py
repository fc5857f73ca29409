"""Verbs that change SGLang's files: ``patch-inspect``, ``patch-apply``, ``patch-revert``.

The engine knows edits, not patches: a file's new bytes, the mode, and the sha256 that the client saw before. All edits
of a patch happen or none. What a crash left half done is undone or completed by the next of these verbs, whichever it
is, which says so with an event: ``{"kind": "recovered", "patch", "what": undone | completed, "left": [files that
somebody changed in between], "aside"}``, the folder with what a script, or somebody meanwhile, had written; or none.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from hsops.agent import facts, lock, patch_plan
from hsops.agent.patch_owners import owners, places
from hsops.agent.patch_site import Site, too_large
from hsops.agent.patch_store import Store, interrupted, patches_folder, stores
from hsops.agent.protocol import Refusal, emit


def inspect(params: dict[str, Any]) -> dict[str, Any]:
    """How patches stand here.

    ``params``: ``patches``, names; optional ``place`` (see ``_place``); optional ``read``, files (``folder/*.py`` is
    allowed) whose bytes are wanted; optional ``originals``: also those of the patches' files, and what they were
    before; optional ``known``, sha256 of bytes that the client has; optional ``marked``, see ``_marked``; optional
    ``flags``, of SGLang's command line.

    Returns ``sglang`` (facts), ``patches`` {name: {``state``: absent | applied | partial | foreign, ``identity``,
    ``options``, ``sglang``, ``applied``, ``serial``, ``files`` {path: applied | original | missing | edited |
    replaced}, ``originals``, as ``files``}}, ``places`` {name: the folders that it is recorded in},
    ``files`` {path: {``content_b64``, null when not wanted, ``mode``, ``sha256``, ``uid``, ``gid``} or null},
    ``links`` (``patch_plan.links``), ``flags`` {flag: whether SGLang's code has it}, ``owners`` {path: patch},
    ``root`` (the place's folder), ``state_dir``, ``machine`` (``facts.machine``) and ``unwritable`` (why, or empty).
    """
    sglang, site = _place(params)
    with _locked(params):
        _recover(params["state_dir"], site)
        found, version = stores(params["state_dir"], site), sglang["version"]
        records = {name: store.record() for name, store in found.items()}
        read, known = list(params.get("read", [])), set(params.get("known", []))
        marked, originals = _marked(params, records), dict[str, Any]()
        for name in params["patches"] if params.get("originals") else ():
            originals[name] = patch_plan.originals(found[name]) if name in found else {}
            read += originals[name]
        wanted = _small(site, patch_plan.wanted(site, read), sum(map(patch_plan.length, originals.values())))
        return {
            "sglang": sglang,
            "patches": {
                name: {**patch_plan.judge(records.get(name), site, version), "originals": originals.get(name, {})}
                for name in params["patches"]
            },
            "places": {name: places(params["state_dir"], name) for name in params["patches"]},
            "files": {path: _told(site, path, known, marked.get(path, "")) for path in wanted},
            "links": patch_plan.links(site, read),
            "flags": facts.flags(sglang["site"] or "", params.get("flags", [])),
            "owners": owners(params["state_dir"], site, wanted),
            "root": site.root,
            "state_dir": os.path.realpath(os.path.expanduser(params["state_dir"])),
            "machine": facts.machine(),
            "unwritable": (sglang["root"] and site.unwritable("sglang/__init__.py")) or site.unwritable("x"),
        }


def check(params: dict[str, Any]) -> dict[str, Any]:
    """Whether the paths of an apply or a revert would be refused, before anybody agrees to it. Changes nothing.

    ``params``: ``patch``, ``place``, ``edits`` as of ``apply`` (of a revert: none), whose bytes do not matter here, and
    ``changes``, the paths that change.

    Raises:
        Refusal: as ``apply``.
    """
    _, site = _place(params)
    edits = [patch_plan.parse_edit(raw) for raw in params["edits"]]
    patch_plan.check(edits, site, Store(params["state_dir"], params["patch"], site))
    _check_owners(params, site, edits)
    caches = [cache for path in params["changes"] for cache in site.caches(path)]
    patch_plan.check_writable([*params["changes"], *caches], site)
    return {}


def apply(params: dict[str, Any]) -> dict[str, Any]:
    """Apply a patch, replacing what an earlier apply of it did.

    ``params``: ``patch``, ``place``, ``identity``, ``options`` (any JSON), ``edits``: [{``path``, ``content_b64`` or
    null to remove, ``mode``, ``before_sha256`` or null, optional ``original_b64`` or null: what a revert brings back,
    when that is not what lies there now, optional ``exact``: the mode counts too, else a file keeps its own}]; optional
    ``expect``, see ``patch_plan.unexpected``, with ``exact``: also when somebody did the same in between; and ``lock``,
    see ``lock.held``. The result's ``already``: somebody did, and ``since`` when;
    ``runs``: ``runs.loaded``, after the change.

    Raises:
        Refusal: ``no-sglang``, ``not-importable``, ``escapes-root``, ``changed-meanwhile``, ``conflict``,
            ``not-writable``, ``locked``, ``lock-lost``. Nothing is changed.
    """
    sglang, site = _place(params)
    with lock.held(params) as held, held.kept_alive(lock.STEP_S):
        with _locked(params, held):
            told = _apply(params, site, sglang["version"], held)
        return _with_strangers(told, site)


def _apply(params: dict[str, Any], site: Site, version: str | None, held: lock.Held) -> dict[str, Any]:
    edits = [patch_plan.parse_edit(raw) for raw in params["edits"]]
    _recover(params["state_dir"], site)
    store = Store(params["state_dir"], params["patch"], site, fence=held.check)
    if _done_by_another(params, store, version):
        since = (store.record() or {}).get("applied", 0.0)
        told = {"changed": [], "identity": params["identity"], "runs": _loaded(params, site)}
        return {**told, "already": True, "since": since}
    _check_expected(params, store, version)
    patch_plan.check(edits, site, store)
    patch_plan.check_size(edits, store)
    _check_owners(params, site, edits)
    changes, entries, folders = patch_plan.applying(edits, store)
    patch_plan.check_writable([change["path"] for change in changes], site)
    record = {
        "serial": os.urandom(8).hex(),
        "patch": params["patch"],
        "identity": params["identity"],
        "options": params["options"],
        "site": site.root,
        "sglang": version,
        "applied": time.time(),
        "folders": folders,
        "files": entries,
    }
    before = (store.record() or {}).get("identity")
    store.told = _audited("deploy", params, before, params["identity"], site)
    _carry_out(store, changes, record, make=[f for f in folders if not os.path.isdir(site.path(f))])
    changed = [change["path"] for change in changes]
    return {"changed": changed, "identity": params["identity"], "runs": _loaded(params, site)}


def revert(params: dict[str, Any]) -> dict[str, Any]:
    """Bring back, byte for byte, what was there before the patch.

    ``params``: ``patch``, ``place``; ``force``: also over files that somebody edited since; optional ``expect`` and
    ``lock``.

    Raises:
        Refusal: ``foreign`` (``detail.files``) without ``force``; ``changed-meanwhile``, ``not-writable``, ``locked``,
            ``lock-lost``, ``no-sglang``.
    """
    sglang, site = _place(params)
    with lock.held(params) as held, held.kept_alive(lock.STEP_S):
        with _locked(params, held):
            told = _revert(params, site, sglang["version"], held)
        return _with_strangers(told, site)


def _revert(params: dict[str, Any], site: Site, version: str | None, held: lock.Held) -> dict[str, Any]:
    _recover(params["state_dir"], site)
    store = Store(params["state_dir"], params["patch"], site, fence=held.check)
    _check_expected(params, store, version)
    record = store.record()
    if record is None:
        return {"changed": [], "left": [], "identity": None, "runs": []}
    judged = patch_plan.judge(record, site, version)
    edited = [path for path, state in judged["files"].items() if state == "edited"]
    if judged["state"] == "foreign" and not params.get("force"):
        raise Refusal("foreign", f"edited since it was applied: {', '.join(edited)}", files=edited)
    changes = patch_plan.reverting(record, judged, store)
    patch_plan.check_writable([change["path"] for change in changes], site)
    store.told = _audited("revert", params, record["identity"], None, site)
    missing = [folder for one in changes if one["after"] for folder in site.missing_folders(one["path"])]
    _carry_out(store, changes, None, make=[*dict.fromkeys(missing)], remove=record["folders"][::-1])
    left = [folder for folder in record["folders"] if os.path.isdir(site.path(folder))]
    changed = [change["path"] for change in changes]
    return {"changed": changed, "left": left, "identity": record["identity"], "runs": _loaded(params, site)}


def rehearse(params: dict[str, Any]) -> dict[str, Any]:
    """Run a script that is a patch on a copy of its files; the real ones stay as they are.

    ``params``: ``patch``, ``place``, ``script_b64``, ``name`` (of the script), ``files`` that it may change, ``args``
    (``{root}`` becomes the folder), ``env``, ``timeout`` in seconds; optional ``private``, ``no``: without a view of
    its own even where the kernel allows one.

    Returns ``files`` {path: {``content_b64``, ``mode``}, null where it is gone}, those that differ afterwards from what
    they are without the patch; ``output``, its last lines; ``seconds``; ``private``; ``ended``, how many processes it
    left behind.

    Raises:
        Refusal: ``script-failed``, ``script-touched`` (an undeclared file), ``script-escaped`` (it wrote to the real
            files); ``bad-root``, ``too-large``, and those of ``apply``.
    """
    from hsops.agent import patch_script

    sglang, site = _place(params)
    patience = params["timeout"] + lock.STEP_S  # the script's, and a slow disk's; others are told for whom they wait
    with lock.held(params) as held, held.kept_alive(patience), _locked(params, held):
        _recover(params["state_dir"], site)
        store = Store(params["state_dir"], params["patch"], site)
        return patch_script.rehearse(params, store, sglang["version"], import_root=params["place"] == "site")


def _place(params: dict[str, Any]) -> tuple[dict[str, Any], Site]:
    """SGLang, and the folder that a patch's files are relative to.

    ``place``: ``source``, the folder that holds SGLang, which must be able to hold a package; ``site``, the same, to
    change what is there; ``hook``, below the state folder; or an absolute folder, which needs no SGLang.
    """
    found = facts.sglang()
    place = params.get("place", "source")
    if place.startswith(("/", "~")):
        folder = os.path.expanduser(place)
        if not os.path.isdir(folder):
            raise Refusal("no-root", f"{folder} is not a folder", root=folder)
        return {**found, "version": None}, Site(folder)  # another SGLang explains no change there
    if found["root"] is None:
        raise Refusal("no-sglang", f"{sys.executable} finds no sglang", python=sys.executable)
    if place == "hook":
        folder = os.path.join(os.path.expanduser(params["state_dir"]), "hook")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return found, Site(folder)
    folders = {os.path.realpath(folder) for folder in sys.path if folder}
    if place == "source" and os.path.realpath(found["site"]) not in folders:
        raise Refusal(
            "not-importable",
            f"sglang lies in {found['site']}, which is not on Python's path (an editable install?): "
            "a package put beside it would not be found",
            site=found["site"],
        )
    return found, Site(found["site"])


def _locked(params: dict[str, Any], held: lock.Held | None = None) -> contextlib.AbstractContextManager[None]:
    """Nobody else writes here now: an interrupted change must not be mistaken for one under way."""
    return lock.exclusive(patches_folder(params["state_dir"]), params, held)


def _recover(state_dir: str, site: Site) -> None:
    """What crashes left half done, here and elsewhere, is put right before anything is judged, and told at once."""
    if os.path.isdir(os.path.join(os.path.expanduser(state_dir), "scratch")):  # a script ran when its agent was killed
        from hsops.agent import patch_script

        for name, aside in patch_script.discard_all(state_dir).items():
            emit("recovered", patch=name, what="undone", left=[], aside=aside)
    for name, store in [*stores(state_dir, site).items(), *interrupted(state_dir)]:
        if recovered := store.recover():
            emit("recovered", patch=name, **recovered)


def _small(site: Site, paths: list[str], more: int) -> list[str]:
    """``paths``, when all of them, and ``more`` bytes of originals, may travel to the client together.

    Raises:
        Refusal: ``file-too-large``.
    """
    too_large({path: os.path.getsize(full) for path in paths if os.path.isfile(full := site.path(path))}, more)
    return paths


def _marked(params: dict[str, Any], records: dict[str, Any]) -> dict[str, str]:
    """``params["marked"]``: the text without which a file's bytes are not wanted, by path. Of a record's all are."""
    held = [records.get(name) or {"files": ()} for name in params["patches"]]
    ours = {entry["path"] for record in held for entry in record["files"]}
    return {path: text for path, text in params.get("marked", {}).items() if path not in ours}


def _told(site: Site, path: str, known: set[str], mark: str) -> dict[str, Any] | None:
    found = site.state(path)
    if found is None:
        return None
    state, data = found
    wanted = state["sha256"] not in known and mark.encode() in data
    content = base64.b64encode(data).decode() if wanted else None
    return {"content_b64": content, **{key: state[key] for key in patch_plan.SEEN}}


def _done_by_another(params: dict[str, Any], store: Store, version: str | None) -> bool:
    """Who waited for the lock finds, after a colleague's deploy of the same, what it came for."""
    record, expect = store.record(), params.get("expect")
    if record is None or not expect or params.get("exact") or record["serial"] == expect["serial"]:
        return False
    same = record["identity"] == params["identity"]
    return same and bool(patch_plan.judge(record, store.site, version)["state"] == "applied")


def _check_expected(params: dict[str, Any], store: Store, version: str | None) -> None:
    """What the client planned for is what is there."""
    expect = params.get("expect")
    differ = patch_plan.unexpected(expect, store.record(), store.site, version) if expect else []
    if differ:
        more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
        said = f"changed since it was looked at: {', '.join(differ[:3])}{more}"
        raise Refusal("changed-meanwhile", said, differ=differ)


def _check_owners(params: dict[str, Any], site: Site, edits: list[patch_plan.Edit]) -> None:
    held: dict[str, list[str]] = {}
    for path, name in owners(params["state_dir"], site, [edit.path for edit in edits]).items():
        if name != params["patch"] and any(path == edit.path for edit in edits):
            held.setdefault(name, []).append(path)
    for name, shared in held.items():
        raise Refusal("conflict", f"patch {name!r} already changes {', '.join(shared)}", patch=name, files=shared)


def _loaded(params: dict[str, Any], site: Site) -> list[dict[str, Any]]:
    """The servers that run now, with what they have loaded. It is no reason to fail a change that stands."""
    try:
        from hsops.agent import runs

        return runs.loaded(params, site.root)
    except OSError:
        return []


def _with_strangers(told: dict[str, Any], site: Site) -> dict[str, Any]:
    """The servers that hsops did not start, told while the client hears beats; it fails no change that stands."""
    with contextlib.suppress(OSError):
        from hsops.agent import strangers

        told["runs"] += strangers.strangers(site.root, {run["id"] for run in told["runs"]})
    return told


def _audited(action: str, params: dict[str, Any], before: Any, after: Any, site: Site) -> dict[str, Any]:
    told = {"action": action, **lock.who(params), "patch": params["patch"], "root": site.root}
    return {**told, "before": before, "after": after}


def _carry_out(
    store: Store,
    changes: list[dict[str, Any]],
    record: dict[str, Any] | None,
    *,
    make: Sequence[str] = (),
    remove: Sequence[str] = (),
) -> None:
    try:
        store.carry_out(changes, record, make=make, remove=remove)
    except OSError as error:
        raise _refused(error, error.filename or store.folder, store) from None


def _refused(error: OSError, where: str, store: Store) -> Refusal:
    code = {errno.ENOSPC: "no-room", errno.EDQUOT: "no-room"}.get(error.errno or 0, "not-written")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        code = "not-writable"
    hint = " (immutable? lsattr tells)" if error.errno == errno.EPERM and os.geteuid() == 0 else ""
    name = errno.errorcode.get(error.errno or 0, "")
    left = "nothing was changed"
    if store.pending():  # it could not even be told whose the undoing is
        code, left = "unfinished", "the change is half done"
    said = f"{where}: {error.strerror or error}{hint}; {left}"
    return Refusal(code, said, errno=name, path=where, folder=store.folder)
