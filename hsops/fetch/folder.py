"""The local folder: dumps, part files and a manifest that never names a file before it is whole and durable."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from hsops.core.dumps import MANIFEST, SUFFIX, Sample, parse_sample
from hsops.core.errors import BadDataError, SpaceError
from hsops.core.files import locked_folder, open_file, sync_file, sync_folder
from hsops.fetch.plan import Held, Stamp, part_name

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*" + re.escape(SUFFIX) + r"\.([0-9a-f]{16}|[0-9a-f]{8})\.part\Z")
_STAMP = "local"  # the key that a local manifest line has besides the host's


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in the folder.

    Args:
        held: the local manifest by id.
        files: dumps by id.
        parts: part files: name -> bytes.
        untidy: the manifest has lines that are torn, unreadable or superseded, and is to be written anew.
    """

    held: dict[str, Held]
    files: dict[str, Stamp]
    parts: dict[str, int]
    untidy: bool


class Folder:
    """One local dump folder, locked for this process by ``open_folder``."""

    def __init__(self, path: Path) -> None:
        self.path, self._lines = path, dict[str, str]()

    def read(self) -> Contents:
        """Look at everything in it; nothing is changed.

        Raises:
            BadDataError: what is named like the manifest is no file.
        """
        held, untidy = self._read_manifest()
        files: dict[str, Stamp] = {}
        parts: dict[str, int] = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                if not entry.is_file(follow_symlinks=False):
                    continue  # a link or a folder is never taken for a dump; a transfer replaces it by rename
                if entry.name.endswith(SUFFIX):
                    files[entry.name.removesuffix(SUFFIX)] = stamp_of(entry)
                elif _PART.match(entry.name):
                    parts[entry.name] = entry.stat(follow_symlinks=False).st_size
        return Contents(held, files, parts, untidy)

    def free(self) -> int:
        """Bytes free on its file system."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def part(self, sample: Sample) -> Path:
        """Where the sample's bytes go until they are whole."""
        return self.path / part_name(sample)

    def file(self, sample: Sample) -> Path:
        """The sample's dump."""
        return self.path / sample.file

    def open_part(self, sample: Sample, offset: int) -> int:
        """A file descriptor of the part file, cut to ``offset`` bytes."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe: an error, no wait
        handle = os.open(self.part(sample), flags, 0o644)
        os.ftruncate(handle, offset)
        return handle

    def forget(self, ids: Collection[str]) -> None:
        """Write the manifest anew without ``ids``: it must not name a file that is about to be replaced."""
        self._lines = {id_: line for id_, line in self._lines.items() if id_ not in ids}
        temporary = self.path / f".{MANIFEST}.new"
        temporary.unlink(missing_ok=True)  # whatever it is: a pipe of that name would be written to, or waited for
        with temporary.open("x", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in self._lines.values())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / MANIFEST)
        sync_folder(self.path)

    def commit(self, samples: Sequence[Sample], lines: Mapping[str, str]) -> None:
        """Make whole part files durable dumps, then the manifest's lines for them.

        The order is the promise: content, name, then the line. A kill in between leaves a file without a line, which
        the next plan checks and adopts.

        Args:
            samples: their part files were checked.
            lines: the host's manifest line by id.
        """
        for sample in samples:
            sync_file(self.part(sample))
        for sample in samples:
            self.part(sample).replace(self.file(sample))
        sync_folder(self.path)
        self.adopt(samples, lines)

    def adopt(self, samples: Sequence[Sample], lines: Mapping[str, str]) -> None:
        """Append manifest lines for dumps that are whole and in place."""
        added = {s.id: self._line(s, lines[s.id]) for s in samples}
        with (self.path / MANIFEST).open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in added.values())
            file.flush()
            os.fsync(file.fileno())
        self._lines.update(added)

    def _line(self, sample: Sample, line: str) -> str:
        raw = {**json.loads(line), _STAMP: asdict(stamp_of(self.file(sample)))}
        return json.dumps(raw, separators=(",", ":"))

    def _read_manifest(self) -> tuple[dict[str, Held], bool]:
        try:
            with open_file(self.path / MANIFEST, fix="move it away, or choose another --to DIR") as file:
                text = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return {}, False
        *lines, torn = text.split("\n")
        held, untidy = dict[str, Held](), bool(torn)
        self._lines = {}
        for line in lines:
            entry = _held(line)
            untidy = untidy or entry is None or entry.sample.id in held
            if entry is not None:
                held[entry.sample.id] = entry
                self._lines[entry.sample.id] = line
        return held, untidy


@contextmanager
def open_folder(path: Path) -> Iterator[Folder]:
    """The folder, made when missing, for this process alone.

    Raises:
        UsageError: it cannot be a folder.
        LockedError: another fetch writes there.
    """
    with locked_folder(path, "another fetch writes to"):
        yield Folder(path)


def stamp_of(file: Path | os.DirEntry[str]) -> Stamp:
    """The stamp of a file itself, not of what a link points to."""
    found = file.lstat() if isinstance(file, Path) else file.stat(follow_symlinks=False)
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def check_space(folder: Folder, needed: int) -> None:
    """Refuse before anything is sent.

    Raises:
        SpaceError: ``needed`` bytes do not fit.
    """
    free = folder.free()
    if needed > free:
        raise SpaceError(
            f"{needed:,} bytes are to come, {folder.path} has {free:,} free",
            fix="free some room, or choose another --to DIR; what is here already will not be sent again",
        )


def _held(line: str) -> Held | None:
    try:
        sample = parse_sample(line)
    except BadDataError:
        return None
    raw = json.loads(line).get(_STAMP)
    try:
        return Held(sample, Stamp(**raw))
    except TypeError:  # no stamp, or not ours: the file will be checked
        return Held(sample, None)
