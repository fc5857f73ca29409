"""What a fetch has to do. Pure: it looks at values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class File:
    """A file on the host, as its manifest or a look at its folder tells.

    Args:
        id: what people call it: a sample's id, else its name.
        name: below the folder, with ``/`` between folders; checked by whoever made it.
        bytes: its size.
        version: tells its content from any other of that name: a checksum, or what its inode says.
        part: where its bytes go until they are whole, below the local folder. It names the content too, so that a part
            of an older one is never continued.
        checksum: ``kind:hex`` of the whole; empty when only the sender can tell.
        line: what the local manifest keeps of it, a JSON object.
        prompt: what it was made from: two files of one id but other prompts are a conflict.
        inode: number and mtime_ns of the file that was looked at; None for one that a manifest names.
    """

    id: str
    name: str
    bytes: int
    version: str
    part: str
    checksum: str = ""
    line: str = field(default="{}", compare=False)
    prompt: str = field(default="", compare=False)
    inode: tuple[int, int] | None = field(default=None, compare=False)

    def arrived(self, checksum: str, inode: tuple[int, int] | None) -> File:
        """The same with what is known once it is here; ``dataclasses.replace`` takes ten times as long."""
        return File(
            self.id, self.name, self.bytes, self.version, self.part, checksum, self.line, self.prompt, inode=inode
        )


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a local file's inode tells: it changes whenever somebody writes to the file.

    Args:
        size: bytes.
        mtime_ns, ctime_ns: last change of the content, of the inode. ``ctime`` cannot be set back by a program.
    """

    size: int
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True)
class Held:
    """What the local manifest says of a file, with its checksum; ``stamp``: as it was when it was checked."""

    file: File
    stamp: Stamp | None


@dataclass(frozen=True, slots=True, order=True)
class Kept:
    """A stretch [start, end) of a part file that came whole, and its checksum."""

    start: int
    end: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part file.

    Args:
        size: bytes; all of them are good when it came in one piece.
        kept: the stretches that are good when it comes in several; None when it came in one.
    """

    size: int
    kept: tuple[Kept, ...] | None = None


NOTHING = Part(0)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One file to be sent.

    Args:
        file: which.
        part: what a part file of this very content has already.
        why: ``new``; ``changed``: other content on the host; ``lost`` or ``damaged``: the local file.
    """

    file: File
    part: Part
    why: str

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """The stretches that are missing; at least one, of which nothing may be left."""
        if self.part.kept is None:
            return ((self.part.size, self.file.bytes),)
        at, gaps = 0, list[tuple[int, int]]()
        for kept in sorted(self.part.kept):
            if kept.start > at:
                gaps.append((at, kept.start))
            at = max(at, kept.end)
        return (*gaps, (at, self.file.bytes)) if at < self.file.bytes or not gaps else tuple(gaps)

    @property
    def left(self) -> int:
        """Bytes to send."""
        if self.part.kept is None:
            return self.file.bytes - self.part.size
        return sum(end - start for start, end in self.gaps)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do.

    Args:
        check: files whose content must be read before it is known whether they are whole, each with the checksum that
            it must have; plan again afterwards.
        transfers: files to send.
        adopt: files that are whole but that the local manifest does not tell so.
        done: files that need nothing, as the local manifest has them.
        conflicts: ids whose local file is of another prompt; nothing must be done before a person decides.
        stale_parts: part files of content that nobody wants any more.
        only_here: files that must not come: the one here is the only copy of what the host had under that name.
    """

    check: tuple[File, ...]
    transfers: tuple[Transfer, ...]
    adopt: tuple[File, ...]
    done: tuple[File, ...]
    conflicts: tuple[str, ...]
    stale_parts: tuple[str, ...]
    only_here: tuple[File, ...] = ()

    @property
    def bytes_to_send(self) -> int:
        """Bytes that will come over the network, and room that they need."""
        return sum(t.left for t in self.transfers)


def plan(
    remote: Mapping[str, File],
    held: Mapping[str, Held],
    files: Mapping[str, Stamp],
    parts: Mapping[str, Part],
    checked: Mapping[str, bool],
    *,
    only: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """Compare what the host has with what is here.

    Args:
        remote: the host's files by name.
        held: the local manifest by name.
        files: the local files by name.
        parts: local part files by name.
        checked: name -> whether the file's content has the right checksum; for names of an earlier plan's ``check``.
        only: name -> the version that a host was freed of.
    """
    found: dict[str, list[File]] = {state: [] for state in ("check", "adopt", "done", "only here")}
    transfers, conflicts, continued = list[Transfer](), list[str](), set[str]()
    for f in remote.values():  # a million small files: what is done of each counts
        had = held.get(f.name)
        if had is not None and _is_another_prompt(f, had.file):
            conflicts.append(f.id)
        state = _state(f, had, files.get(f.name), checked.get(f.name))
        if state in ("check", "changed", "damaged") and is_only_copy(f, had, only):
            state = "only here"
        if state in found:
            found[state].append(f if state == "only here" else _known(f, had))
            continue
        part = _part(f, parts)
        if part is not NOTHING:
            continued.add(f.part)
        transfers.append(Transfer(f, part, state))
    return Plan(
        check=tuple(found["check"]),
        transfers=tuple(transfers),
        adopt=tuple(found["adopt"]),
        done=tuple(found["done"]),
        conflicts=tuple(conflicts),
        stale_parts=tuple(sorted(set(parts) - continued)),
        only_here=tuple(found["only here"]),
    )


def is_only_copy(file: File, held: Held | None, only: Mapping[str, str]) -> bool:
    """What is here under the file's name may be all that is left of a content that a host was freed of.

    A dump, whose version is its checksum, is no such: a sample that was extracted again replaces the older one.
    """
    gone = only.get(file.name)
    return (
        file.version != file.checksum
        and gone not in (None, file.version)
        and (held is None or held.file.version == gone)
    )


def _state(file: File, held: Held | None, here: Stamp | None, checked: bool | None) -> str:
    if here is None:
        return "new" if held is None else "lost"
    same = held is not None and (held.file.version, held.file.bytes) == (file.version, file.bytes)
    otherwise = "damaged" if same or held is None else "changed"
    if here.size != file.bytes or not (file.checksum or same):
        return otherwise
    if same and held is not None and held.stamp == here and checked is None:
        return "done"
    return {None: "check", True: "adopt", False: otherwise}[checked]


def _known(file: File, held: Held | None) -> File:
    """With its checksum: the host's, or the one with which it came."""
    return file if file.checksum or held is None else held.file


def _part(file: File, parts: Mapping[str, Part]) -> Part:
    """What can be continued of it."""
    part = parts.get(file.part, NOTHING)
    if part is NOTHING or part == NOTHING or part.size > file.bytes:
        return NOTHING
    return part if all(0 <= k.start < k.end <= part.size for k in part.kept or ()) else NOTHING


def _is_another_prompt(remote: File, local: File) -> bool:
    return bool(remote.prompt and local.prompt) and remote.prompt != local.prompt
