"""The local folder: files, part files and a manifest that never names a file before it is whole and durable."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hsops.core.errors import SpaceError
from hsops.core.files import locked_folder, open_file, sync_file, sync_folder
from hsops.fetch.plan import File, Held, Kept, Part, Stamp, Transfer, is_only_copy

LOCAL = "local"  # the key that a local manifest line has besides the host's
LEDGER = ".hsops-evicted.jsonl"  # beside the manifest: what was removed on a host
PIECES = ".pieces"  # beside a part file that comes in several: a line for each that is here
_AT_ONCE = 8  # files from which on one sync of the file system costs less than one of each
_MODE = 0o644
_TAKEN = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENOTEMPTY, errno.EEXIST)  # one file's place, no other's
_ESCAPED = "backslashreplace"  # half a character of a host's line, as JSON writes it


class Layout(Protocol):
    """Where things lie in the folder, and how its manifest is written."""

    @property
    def manifest(self) -> str:
        """The manifest, below the folder."""
        ...

    def parse(self, line: str) -> Held | None:
        """A line of the manifest; None: it is torn or not ours."""
        ...

    def scan(self, path: Path) -> tuple[dict[str, Stamp], dict[str, int]]:
        """The files by name, and the part files and lists of pieces with their sizes."""
        ...


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in the folder.

    Args:
        held: the local manifest by name.
        files: files by name.
        parts: part files by name.
        untidy: the manifest has lines that are torn, unreadable or superseded, and is to be written anew.
        only: by name, the version of which a host was freed: the file here may be the only copy.
    """

    held: dict[str, Held]
    files: dict[str, Stamp]
    parts: dict[str, Part]
    untidy: bool
    only: Mapping[str, str] = field(default_factory=dict)


class Folder:
    """One local folder, locked for this process by ``open_folder``."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path, self.layout, self._lines = path, layout, dict[str, str]()
        self._manifest = path / layout.manifest
        self._lock = threading.RLock()  # of the manifest: one thread plans while another makes files durable
        self._made = {path}
        self._has_manifest = self._manifest.exists()
        self.ledger = self._manifest.with_name(LEDGER)
        self._only: dict[str, str] | None = None
        self._root, self._in_pieces = f"{path}/", set[str]()  # pathlib costs as much as a small file's system calls

    def read(self) -> Contents:
        """Look at everything in it; nothing is changed.

        Raises:
            BadDataError: what is named like the manifest is no file.
        """
        held, untidy = self._read_manifest()
        files, sizes = self.layout.scan(self.path)
        parts = {
            name: Part(size, self._kept(name) if name + PIECES in sizes else None)
            for name, size in sizes.items()
            if not name.endswith(PIECES)
        }
        orphans = {n: Part(0, ()) for n in sizes if n.endswith(PIECES) and n.removesuffix(PIECES) not in sizes}
        return Contents(held, files, parts | orphans, untidy, self.only)

    def look(self, wanted: Mapping[str, File]) -> Contents:
        """The same of these files alone, by what is known of the manifest."""
        with self._lock:
            held = {n: h for n in wanted if n in self._lines and (h := self.layout.parse(self._lines[n]))}
        files, parts = dict[str, Stamp](), dict[str, Part]()
        for file in wanted.values():
            with suppress(FileNotFoundError, NotADirectoryError):
                if stat.S_ISREG(self.file(file).lstat().st_mode):
                    files[file.name] = stamp_of(self.file(file))
            with suppress(FileNotFoundError):
                size = self.part(file).lstat().st_size
                pieces = Path(f"{self.part(file)}{PIECES}").exists()
                parts[file.part] = Part(size, self._kept(file.part) if pieces else None)
        return Contents(held, files, parts, untidy=False, only=self.only)

    @property
    def only(self) -> Mapping[str, str]:
        """By name, the version that a host was, or may have been, freed of."""
        with self._lock:
            if self._only is None:
                self._only = {}
                for line in ledger_lines(self.ledger):
                    self._note(line["state"], line["name"], line["version"])
            return dict(self._only)

    def note(self, state: str, files: Iterable[File]) -> None:
        """The ledger has a line of that state for each."""
        with self._lock:
            _ = self.only
            for file in files:
                self._note(state, file.name, file.version)

    def _note(self, state: str, name: str, version: str) -> None:
        assert self._only is not None
        if state in ("copied", "evicted"):  # without an answer a request may have been carried out
            self._only[name] = version
        elif self._only.get(name) == version:
            del self._only[name]

    def is_only_copy(self, file: File) -> bool:
        """The file of its name here is of a version that a host was freed of, and this is another."""
        with self._lock:
            _ = self.only
            assert self._only is not None
            if self._only.get(file.name, file.version) == file.version:
                return False
            held = self.layout.parse(self._lines[file.name]) if file.name in self._lines else None
        return is_only_copy(file, held, self._only) and os.path.lexists(self.file(file))

    def has_all(self, file: File) -> bool:
        """The pieces that came of it are all of it."""
        part = Part(self.part(file).lstat().st_size, self._kept(file.part))
        return part.size == file.bytes and not Transfer(file, part, "").left

    def part(self, file: File) -> Path:
        """Where the file's bytes go until they are whole."""
        return self.path / file.part

    def file(self, file: File) -> Path:
        """Where it goes."""
        return self.path / file.name

    def open_part(self, file: File, offset: int | None) -> int:
        """A file descriptor of the part file, cut to ``offset`` bytes; with None it comes in pieces."""
        part = self._root + file.part
        if offset is None:  # first the list: a part file without one is taken for good up to its end
            self._in_pieces.add(file.part)
            os.close(os.open(f"{part}{PIECES}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE))
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe: an error, no wait
        handle = os.open(part, flags, _MODE)
        if offset is not None:
            os.ftruncate(handle, offset)
        return handle

    def keep(self, file: File, kept: Kept) -> None:
        """A piece of the part file is here; a rerun reads it again before it believes so."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(f"{self.part(file)}{PIECES}", flags, _MODE)
        try:
            os.write(handle, f"{kept.start} {kept.end} {kept.checksum}\n".encode())
        finally:
            os.close(handle)

    def drop(self, part: str) -> None:
        """Forget a part file."""
        (self.path / part).unlink(missing_ok=True)
        (self.path / f"{part}{PIECES}").unlink(missing_ok=True)

    def forget(self, names: Collection[str]) -> None:
        """Write the manifest anew without ``names``: it must not name a file that is about to be replaced."""
        with self._lock:
            self._lines = {name: line for name, line in self._lines.items() if name not in names}
            self._write_manifest()

    def _write_manifest(self) -> None:
        temporary = self._manifest.with_name(f".{self._manifest.name}.new")
        temporary.unlink(missing_ok=True)  # whatever it is: a pipe of that name would be written to, or waited for
        with temporary.open("x", encoding="utf-8", errors=_ESCAPED) as file:
            file.writelines(line + "\n" for line in self._lines.values())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._manifest)
        sync_folder(self._manifest.parent)

    def commit(self, files: Sequence[File]) -> dict[File, OSError]:
        """Make whole part files durable files, then the manifest's lines for them.

        The order is the promise: content, name, then the line. A kill in between leaves a file without a line, which
        the next plan checks and adopts.

        Args:
            files: their part files were checked; each has its checksum.

        Returns: those whose place a folder, a link, or a file where a folder is needed has; their part files stay.

        Raises:
            OSError: the folder cannot be written.
        """
        self._sync([self.part(file) for file in files])
        folders, misplaced = {self.path}, dict[File, OSError]()
        for file in files:
            try:
                folders.add(self._place(file))
            except OSError as error:  # noqa: PERF203 - a rename costs more
                if error.errno not in _TAKEN:
                    raise
                misplaced[file] = error
        for folder in folders:
            sync_folder(folder)
        placed = [file for file in files if file not in misplaced]
        self.adopt(placed)
        for part in self._in_pieces.intersection(file.part for file in placed):
            self.drop(part)
        return misplaced

    def _place(self, file: File) -> Path:
        """Give it its name; returns the folder that it is in now."""
        folder = self.path
        if "/" in file.name:
            folder = self.file(file).parent
            self._make_folder(folder)
        os.replace(self._root + file.part, self._root + file.name)  # noqa: PTH105 - see _root
        return folder

    def adopt(self, files: Sequence[File]) -> None:
        """Append manifest lines for files that are whole and in place."""
        added = {f.name: self._line(f) for f in files}
        with self._lock, self._manifest.open("a", encoding="utf-8", errors=_ESCAPED) as file:
            file.writelines(line + "\n" for line in added.values())
            file.flush()
            os.fsync(file.fileno())
            self._lines.update(added)
            if not self._has_manifest:  # its own name
                sync_folder(self._manifest.parent)
                self._has_manifest = True

    def _line(self, file: File) -> str:
        """The host's line and what is known here: of two keys that are alike the last one counts."""
        found = os.lstat(self._root + file.name)
        local = f'{{"size":{found.st_size},"mtime_ns":{found.st_mtime_ns},"ctime_ns":{found.st_ctime_ns}}}'
        return f'{file.line.rstrip()[:-1]},"checksum":"{file.checksum}","{LOCAL}":{local}}}'

    def _sync(self, paths: Sequence[Path]) -> None:
        if len(paths) < _AT_ONCE or not _sync_file_system(self.path):
            for path in paths:
                sync_file(path)

    def _make_folder(self, folder: Path) -> None:
        """Make it; a link is no folder of ours, whatever it leads to."""
        if folder in self._made:
            return
        self._make_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir()
        sync_folder(folder.parent)  # also when it is there: whoever made it may not have
        if folder.is_symlink():
            raise NotADirectoryError(20, "it is a link", str(folder))
        self._made.add(folder)

    def _kept(self, part: str) -> tuple[Kept, ...]:
        self._in_pieces.add(part)
        text = (self.path / f"{part}{PIECES}").read_text("utf-8", "replace")
        found = [line.split(" ") for line in text.split("\n")[:-1]]
        return tuple(
            Kept(int(f[0]), int(f[1]), f[2]) for f in found if len(f) == 3 and f[0].isdigit() and f[1].isdigit()
        )

    def _read_manifest(self) -> tuple[dict[str, Held], bool]:
        try:
            with open_file(self._manifest, fix="move it away, or choose another --to DIR") as file:
                text = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return {}, False
        *lines, torn = text.split("\n")
        held, untidy = dict[str, Held](), bool(torn)
        self._lines = {}
        for line in lines:
            entry = self.layout.parse(line)
            untidy = untidy or entry is None or entry.file.name in held
            if entry is not None:
                held[entry.file.name] = entry
                self._lines[entry.file.name] = line
        return held, untidy


@contextmanager
def open_folder(path: Path, layout: Layout) -> Iterator[Folder]:
    """The folder, made when missing, for this process alone.

    Raises:
        UsageError: it cannot be a folder.
        LockedError: another fetch writes there.
    """
    new = [folder for folder in (path, *path.absolute().parents) if not folder.exists()]
    with locked_folder(path, "another fetch writes to"):
        (path / layout.manifest).parent.mkdir(exist_ok=True)
        for folder in {path, *(made.absolute().parent for made in new)}:
            sync_folder(folder)
        yield Folder(path, layout)


def ledger_lines(ledger: Path) -> Iterator[dict[str, str]]:
    """The lines of a ledger that are whole."""
    keys = ("state", "name", "version", "host", "source")
    with suppress(FileNotFoundError), ledger.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            with suppress(ValueError, KeyError, TypeError):
                raw = json.loads(text)
                yield {key: str(raw[key]) for key in keys}


def stamp_of(file: Path | os.DirEntry[str]) -> Stamp:
    """The stamp of a file itself, not of what a link points to."""
    found = file.lstat() if isinstance(file, Path) else file.stat(follow_symlinks=False)
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def stamp_from(raw: Any) -> Stamp | None:
    """The stamp of a manifest line; None: there is none, or it is not ours, and the file will be checked."""
    try:
        return Stamp(**raw)
    except TypeError:
        return None


def check_space(folder: Folder, transfers: Sequence[Transfer]) -> None:
    """Refuse before anything is sent.

    Raises:
        SpaceError: the bytes or the files do not fit.
    """
    needed, found = sum(t.left for t in transfers), os.statvfs(folder.path)
    free = found.f_bavail * found.f_frsize
    fix = "free some room, or choose another --to DIR; what is here already will not be sent again"
    if needed > free:
        raise SpaceError(f"{needed:,} bytes are to come, {folder.path} has {free:,} free", fix=fix)
    if found.f_files and len(transfers) > found.f_favail:  # a file system that counts no inodes says 0
        raise SpaceError(
            f"{len(transfers):,} files are to come, {folder.path} has inodes for {found.f_favail:,}", fix=fix
        )


def room(path: Path) -> int | None:
    """Bytes free where a folder is or would be."""
    for folder in (path, *path.absolute().parents):
        with suppress(OSError):
            found = os.statvfs(folder)
            return found.f_bavail * found.f_frsize
    return None


def _sync_file_system(path: Path) -> bool:
    """Make all that lies on a file system durable at once; False: it must be done file by file."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return not ctypes.CDLL(None, use_errno=True).syncfs(handle)
    except (AttributeError, OSError):  # not Linux
        return False
    finally:
        os.close(handle)
