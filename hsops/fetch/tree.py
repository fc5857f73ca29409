"""Any folder of a host. Nothing tells a file's content but the sender's sums; nothing of a name is believed."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from hsops.core.errors import UnreachableError
from hsops.core.events import Emit, Note
from hsops.fetch.folder import PIECES
from hsops.fetch.manifest import LOCAL, stamp_from, stamp_of
from hsops.fetch.plan import File, Held, Stamp
from hsops.fetch.trouble import Trouble
from hsops.remote.agent import Agent
from hsops.remote.tree import Entry, list_tree

OURS = ".hsops-fetch"  # in the local folder: what is under way and what came, apart from files that may have any name
LOSSES = 4  # of the link, in a row, while a folder is followed
LOOK_S = 2.0  # between two looks at files that are still written
_LONGEST_PART, _LONGEST = 255, 4000  # bytes of a name and of a path that a file system takes


class TreeLayout:
    """How any files lie in a local folder."""

    manifest = f"{OURS}/files.jsonl"

    def parse(self, line: str) -> Held | None:
        """A line of the local manifest."""
        try:
            raw = json.loads(line)
            name, size, version, checksum = (raw[key] for key in ("name", "bytes", "version", "checksum"))
            if not (isinstance(size, int) and all(isinstance(x, str) for x in (name, version, checksum))):
                return None
        except (ValueError, KeyError, TypeError):
            return None
        return Held(
            File(shown(name), name, size, version, _part(name, version), checksum, line), stamp_from(raw.get(LOCAL))
        )

    def scan(self, path: Path) -> tuple[dict[str, Stamp], dict[str, int]]:
        """All files but ours, and our part files with their sizes."""
        files, parts, todo = dict[str, Stamp](), dict[str, int](), [""]
        while todo:
            below = todo.pop()
            with os.scandir(path / below) as entries:
                for entry in entries:
                    name = below + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(f"{name}/")
                    elif not entry.is_file(follow_symlinks=False):
                        continue
                    elif below != f"{OURS}/":
                        files[name] = stamp_of(entry)
                    elif name.removesuffix(PIECES).endswith(".part"):
                        parts[name] = entry.stat(follow_symlinks=False).st_size
        return files, parts


class TreeFolder:
    """A folder on the host. Meets ``hsops.fetch.fetch.Source``.

    Args:
        agent: on the host.
        path: the folder there.
        to: the local one.
        include, exclude: patterns of names or paths.
        emit: told what is left out.
    """

    def __init__(
        self, agent: Agent, path: str, to: Path, *, include: Iterable[str], exclude: Iterable[str], emit: Emit
    ) -> None:
        self.path, self.layout, self.refused = path, TreeLayout(), tuple[Trouble, ...]()
        self._agent, self._to, self._emit, self._told = agent, to, emit, False
        self._include, self._exclude = tuple(include), tuple(exclude)

    def look(self) -> dict[str, File]:
        """Its files, but for those that somebody still writes or whose names cannot be."""
        tree = list_tree(self._agent, self.path, self._include, self._exclude)
        blind = is_blind_to_case(self._to)
        bad = refusals([e.path for e in tree.entries], blind=blind)
        written = [
            Trouble(shown(path), "open", "a process is still writing it") for path in sorted(tree.open - set(bad))
        ]
        self.refused = (*(Trouble(shown(path), "name", why) for path, why in sorted(bad.items())), *written)
        if tree.skipped and not self._told:
            what = ", ".join(f"{count} {kind}s" for kind, count in sorted(tree.skipped.items()))
            self._emit(Note(f"left out of {self.path}: {what}", self._agent.host.name))
        self._told = True
        return {e.path: file_of(e) for e in tree.entries if e.path not in bad and e.path not in tree.open}

    def follow(self, stop: threading.Event) -> Iterator[dict[str, File]]:
        """Look again until nobody writes there any more. A link that is lost is looked for again.

        Raises:
            UnreachableError: it was lost several times in a row.
        """
        losses = 0
        while any(t.code == "open" for t in self.refused) and not stop.wait(LOOK_S * 2**losses):
            try:
                files, losses = self.look(), 0
            except UnreachableError as error:  # noqa: PERF203 - a look at a host costs more
                losses += 1
                if losses > LOSSES:
                    raise
                self._emit(Note(f"the folder is looked at again: {error.message}", self._agent.host.name, "warn"))
            else:
                yield files


def file_of(entry: Entry) -> File:
    """A file by what its inode says."""
    version = f"{entry.bytes}-{entry.mtime_ns}-{entry.inode}"
    line = json.dumps({"name": entry.path, "bytes": entry.bytes, "version": version})
    inode = (entry.inode, entry.mtime_ns)
    return File(shown(entry.path), entry.path, entry.bytes, version, _part(entry.path, version), "", line, inode=inode)


def refusals(paths: Iterable[str], *, blind: bool) -> dict[str, str]:
    """Names from a host that must not or cannot be names here: why, by path.

    Args:
        paths: all of them.
        blind: the local file system does not tell upper from lower case.
    """
    paths = list(paths)
    bad = {path: why for path in paths if (why := _fault(path, blind=blind))}
    here = {path: path.casefold() if blind else path for path in paths}
    folders = {parent for path in paths if path not in bad for parent in _parents(here[path])}
    bad |= {path: "another file's folder has this name" for path in paths if here[path] in folders}
    counts = Counter(here[path] for path in paths)
    for path in paths:
        if counts[here[path]] > 1:
            bad[path] = "another file has this name" + (" here, where A and a are one" if blind else "")
    return bad


def shown(path: str) -> str:
    """For people: without what a terminal would act on."""
    text = path.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)[:300]


def is_blind_to_case(folder: Path) -> bool:
    """Whether the file system of a folder, which may not be there yet, takes ``a`` and ``A`` for one name."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.absolute().parent
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".hsops-case-a") as file:
            path = Path(file.name)
            return path.with_name(path.name.upper()).exists()
    except OSError:
        return False


def _fault(path: str, *, blind: bool) -> str:
    parts = path.split("/")
    encoded = [part.encode("utf-8", "surrogateescape") for part in parts if _encodes(part)]
    if len(encoded) != len(parts):
        return "it is no name that a file can have"
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        return "it leads out of the folder"
    if parts[0] == OURS or (blind and parts[0].casefold() == OURS):
        return "hsops keeps its own files under this name"
    if max(map(len, encoded)) > _LONGEST_PART or sum(map(len, encoded)) + len(encoded) > _LONGEST:
        return "it is too long"
    return ""


def _encodes(part: str) -> bool:
    try:
        part.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _part(name: str, version: str) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape") + b"\0" + version.encode("utf-8", "replace"))
    return f"{OURS}/{digest.hexdigest()[:40]}.part"
