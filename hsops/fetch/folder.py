"""The local folder: files, part files and a manifest that never names a file before it is whole and durable."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hsops.core.errors import HsopsError, UsageError
from hsops.core.files import locked_folder, open_own, open_to_write, sync_file, sync_folder
from hsops.fetch.ledger import LEDGER, Ledger
from hsops.fetch.manifest import Manifest, line_of, stamp_of
from hsops.fetch.plan import File, Held, Kept, Part, Stamp, Transfer, is_only_copy

PIECES = ".pieces"  # beside a part file that comes in several: a line for each that is here
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_AT_ONCE = 8  # files from which on one sync of the file system costs less than one of each
# Of one file's place: something else lies there, ...
_TAKEN = (
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENOTEMPTY,
    errno.EEXIST,
    errno.ENXIO,
    errno.EBUSY,
    errno.EXDEV,
    errno.ENAMETOOLONG,
)
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.ENOENT)  # ... or it is another user's, or gone


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
        self.path, self.layout = path, layout
        self.manifest = Manifest(path / layout.manifest, layout.parse)
        self.ledger = Ledger(self.manifest.path.with_name(LEDGER))
        self._made = {path}
        # Thousands of short system calls by several threads at once wait for Python's lock and the folder's, one after
        # the other, each time. In turns, a megabyte of files each, they do not (what that brings: decision 0011).
        self._turn = threading.Lock()
        self._root, self._in_pieces = f"{path}/", set[str]()  # pathlib costs as much as a small file's system calls

    def read(self) -> Contents:
        """Look at everything in it; nothing is changed.

        Raises:
            BadDataError: what is named like the manifest or the ledger is no file.
        """
        held, untidy = self.manifest.read()
        files, sizes = self.layout.scan(self.path)
        parts = {
            name: Part(size, self._kept(name) if name + PIECES in sizes else None)
            for name, size in sizes.items()
            if not name.endswith(PIECES)
        }
        orphans = {n: Part(0, ()) for n in sizes if n.endswith(PIECES) and n.removesuffix(PIECES) not in sizes}
        return Contents(held, files, parts | orphans, untidy, dict(self.ledger.only))

    def look(self, wanted: Mapping[str, File]) -> Contents:
        """The same of these files alone, by what is known of the manifest."""
        files, parts = dict[str, Stamp](), dict[str, Part]()
        for file in wanted.values():
            if _is_file(self.file(file)):
                files[file.name] = stamp_of(self.file(file))
            if _is_file(part := self.part(file)):
                in_pieces = _is_file(Path(f"{part}{PIECES}"))
                parts[file.part] = Part(part.lstat().st_size, self._kept(file.part) if in_pieces else None)
        return Contents(self.manifest.held(wanted), files, parts, untidy=False, only=dict(self.ledger.only))

    def is_only_copy(self, file: File) -> bool:
        """The file of its name here is of a version that a host was freed of, and this is another."""
        only = self.ledger.only
        if not only:
            return False
        if only.get(file.name, file.version) == file.version:
            return False
        held = self.manifest.held([file.name]).get(file.name)
        return is_only_copy(file, held, only) and os.path.lexists(self.file(file))

    def is_of_one(self, error: OSError) -> bool:
        """It is about the place of one file, which is taken or not ours; others can be written."""
        if error.errno in _TAKEN:
            return True
        ours = all(os.access(f, os.W_OK | os.X_OK) for f in (self.path, self.manifest.path.parent))
        return error.errno in _NOT_OURS and ours

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
        """A file descriptor of the part file, cut to ``offset`` bytes; with None it comes in pieces.

        Raises:
            OSError: something else has its place, or it cannot be written.
        """
        part = self._root + file.part
        if offset is None:  # first the list: a part file without one is taken for good up to its end
            self._in_pieces.add(file.part)
            os.close(open_to_write(f"{part}{PIECES}"))
        handle = open_to_write(part)
        if offset is not None:
            os.ftruncate(handle, offset)
        return handle

    def write_parts(self, files: Sequence[tuple[File, bytes]]) -> dict[str, OSError]:
        """Small files, each all at once, whatever was there of it.

        Returns: by part file, of those whose place is taken, why; the others are written.

        Raises:
            OSError: the folder cannot be written.
        """
        bad = dict[str, OSError]()
        with self._turn:
            for file, data in files:
                try:
                    self._write_part(file, data)
                except OSError as error:  # noqa: PERF203 - a file costs more
                    if not self.is_of_one(error):
                        raise
                    bad[file.part] = error
        return bad

    def _write_part(self, file: File, data: bytes) -> None:
        try:
            handle = os.open(self._root + file.part, _NEW, 0o644)
        except FileExistsError:
            handle = self.open_part(file, 0)
        try:
            while (count := os.write(handle, data)) < len(data):
                data = data[count:]
        finally:
            os.close(handle)

    def keep(self, file: File, kept: Kept) -> None:
        """A piece of the part file is here; a rerun reads it again before it believes so."""
        handle = open_to_write(f"{self.part(file)}{PIECES}", os.O_APPEND)
        try:
            os.write(handle, f"{kept.start} {kept.end} {kept.checksum}\n".encode())
        finally:
            os.close(handle)

    def drop(self, part: str) -> None:
        """Forget a part file. What has its name and is none stays, and is told where it is in the way."""
        for name in (part, f"{part}{PIECES}"):
            try:
                (self.path / name).unlink(missing_ok=True)
            except OSError as error:  # noqa: PERF203 - two names
                if not self.is_of_one(error):
                    raise

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
        misplaced = self._sync(files)
        folders = {self.path}
        with self._turn:
            for file in [f for f in files if f not in misplaced] if misplaced else files:
                try:
                    if folder := self._place(file):
                        folders.add(folder)
                except OSError as error:  # noqa: PERF203 - a rename costs more
                    if not self.is_of_one(error):
                        raise
                    misplaced[file] = error
        for folder in folders:
            sync_folder(folder)
        placed = [file for file in files if file not in misplaced] if misplaced else files
        self.adopt(placed)
        for part in self._in_pieces.intersection([file.part for file in placed]) if self._in_pieces else ():
            self.drop(part)
        return misplaced

    def adopt(self, files: Sequence[File]) -> None:
        """Append manifest lines for files that are whole and in place."""
        with self._turn:
            stats = [os.lstat(self._root + f.name) for f in files]
        self.manifest.append({f.name: line_of(f, found) for f, found in zip(files, stats, strict=True)})

    def _place(self, file: File) -> Path | None:
        """Give it its name; returns the folder below this one that it is in now, if it is in one."""
        folder = None
        if "/" in file.name:
            folder = self.file(file).parent
            self._make_folder(folder)
        os.replace(self._root + file.part, self._root + file.name)  # noqa: PTH105 - see _root
        return folder

    def _sync(self, files: Sequence[File]) -> dict[File, OSError]:
        """Make part files durable; those that are none any more."""
        bad = dict[File, OSError]()
        if len(files) >= _AT_ONCE and _sync_file_system(self.path):
            return bad
        for file in files:
            try:
                sync_file(self.part(file))
            except OSError as error:  # noqa: PERF203 - a sync costs more
                if not self.is_of_one(error):
                    raise
                bad[file] = error
        return bad

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
        """By the list of pieces. One that cannot be read names none: what it hides is sent again, or it is told."""
        self._in_pieces.add(part)
        try:
            with open_own(self.path / f"{part}{PIECES}") as file:
                text = file.read().decode("utf-8", "replace")
        except (OSError, HsopsError):
            return ()
        found = [line.split(" ") for line in text.split("\n")[:-1]]
        return tuple(
            Kept(int(f[0]), int(f[1]), f[2]) for f in found if len(f) == 3 and f[0].isdigit() and f[1].isdigit()
        )


@contextmanager
def open_folder(path: Path, layout: Layout) -> Iterator[Folder]:
    """The folder, made when missing, for this process alone.

    Raises:
        UsageError: it cannot be a folder, or what hsops keeps in it cannot.
        LockedError: another fetch writes there.
    """
    new = [folder for folder in (path, *path.absolute().parents) if not folder.exists()]
    with locked_folder(path, "another fetch writes to, or evicts from,"):
        _make_own((path / layout.manifest).parent, path)
        for folder in {path, *(made.absolute().parent for made in new)}:
            sync_folder(folder)
        yield Folder(path, layout)


def _make_own(own: Path, folder: Path) -> None:
    """The folder of what hsops keeps; through a link it would be kept elsewhere."""
    try:
        own.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"{own} cannot be made: {error.strerror}", fix="move away what is there") from None
    if own != folder and own.is_symlink():
        raise UsageError(f"{own} is a link, not a folder", fix="move it away, or choose another --to DIR")


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:  # not there, or nobody can tell: whoever writes it is told
        return False


def _sync_file_system(path: Path) -> bool:
    """Make all that lies on a file system durable at once; False: it must be done file by file."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return not ctypes.CDLL(None, use_errno=True).syncfs(handle)
    except (AttributeError, OSError):  # not Linux
        return False
    finally:
        os.close(handle)
