"""From what the host has to what must be sent: all that needs no network is settled here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from hsops.core.checksum import checksum_of, kind_of, matches
from hsops.core.errors import BadDataError
from hsops.core.events import Emit
from hsops.core.meter import Meter
from hsops.fetch.folder import Contents, Folder
from hsops.fetch.plan import File, Held, Kept, Part, Plan, Transfer, plan
from hsops.fetch.space import check_space


def prepare(
    folder: Folder, files: Mapping[str, File], contents: Contents, *, emit: Emit, recheck: bool = False
) -> Plan:
    """Plan; check files, tidy the manifest, remove stale parts.

    Args:
        folder: the local one.
        files: what the host has, by name.
        contents: what is here of them.
        emit: told the progress of reading.
        recheck: read every file here again.

    Raises:
        BadDataError: there are dumps of other prompts under the same ids.
        SpaceError: it will not fit.
    """
    if recheck:
        contents = replace(contents, held={n: Held(h.file, None) for n, h in contents.held.items()})
    todo = forecast(files, contents)
    if todo.conflicts:
        raise _conflict(todo.conflicts, folder)
    if todo.check:
        todo = forecast(files, contents, _check(folder, todo.check, emit))
    todo = replace(todo, transfers=_proved(folder, todo.transfers, emit))
    check_space(folder.path, todo.transfers)
    void = {f.name for f in todo.adopt} | {t.file.name for t in todo.transfers}
    if contents.untidy or void & set(contents.held):
        folder.manifest.forget(void)
    if todo.adopt:
        folder.adopt(todo.adopt)
    for part in todo.stale_parts:
        folder.drop(part)
    return todo


def forecast(files: Mapping[str, File], contents: Contents, checked: Mapping[str, bool] | None = None) -> Plan:
    """The plan alone."""
    return plan(files, contents.held, contents.files, contents.parts, checked or {}, only=contents.only)


def _check(folder: Folder, files: Iterable[File], emit: Emit) -> dict[str, bool]:
    """Read files whose inode says that they were touched, or that the manifest does not name."""
    files = list(files)
    meter, done, results = Meter("check", "bytes", sum(f.bytes for f in files)), 0, {}
    with ThreadPoolExecutor(2) as pool:  # the checksum runs without the interpreter's lock
        for file, good in zip(files, pool.map(lambda f: _is_whole(folder, f), files), strict=True):
            results[file.name], done = good, done + file.bytes
            emit(meter.at(done))
    return results


def _is_whole(folder: Folder, file: File) -> bool:
    try:
        return matches(folder.file(file), file.checksum)
    except (OSError, ValueError):  # gone or unreadable by now: to be sent again
        return False


def _proved(folder: Folder, transfers: Iterable[Transfer], emit: Emit) -> tuple[Transfer, ...]:
    """Read the pieces of part files again: a power cut may have taken what their lists promise."""
    transfers = tuple(transfers)
    total, done = sum(k.end - k.start for t in transfers for k in t.part.kept or ()), 0
    meter, proved = Meter("check", "bytes", total), list[Transfer]()
    for transfer in transfers:
        if not transfer.part.kept:
            proved.append(transfer)
            continue
        good = tuple(kept for kept in transfer.part.kept if _is_kept(folder, transfer.file, kept))
        done += sum(k.end - k.start for k in transfer.part.kept)
        emit(meter.at(done))
        proved.append(replace(transfer, part=Part(transfer.part.size, good)))
    return tuple(proved)


def _is_kept(folder: Folder, file: File, kept: Kept) -> bool:
    try:
        return checksum_of(folder.part(file), kind_of(kept.checksum), kept.start, kept.end) == kept.checksum
    except (OSError, ValueError):
        return False


def _conflict(ids: tuple[str, ...], folder: Folder) -> BadDataError:
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return BadDataError(
        f"{folder.path} has dumps of other prompts under the same ids: {', '.join(ids[:3])}{more}",
        why="they would be overwritten",
        fix="choose another --to DIR",
    )
