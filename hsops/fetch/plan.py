"""What a fetch has to do. Pure: it looks at values only."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hsops.core.dumps import Sample

FIRST = 16 << 20  # bytes that are worth a connection
LARGEST, SMALLEST = 64 << 20, 1 << 20  # bytes of one request
FILES = 256  # in one request: its text must fit into what lies between two sockets, unread


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
    """What the local manifest says of a sample; ``stamp`` is of the file as it was when it was checked."""

    sample: Sample
    stamp: Stamp | None


@dataclass(frozen=True, slots=True)
class Transfer:
    """One file to be sent.

    Args:
        sample: its line in the host's manifest.
        offset: bytes that a part file of this very content already has.
        why: ``new``; ``changed``: other content on the host; ``lost`` or ``damaged``: the local file.
    """

    sample: Sample
    offset: int
    why: str

    @property
    def left(self) -> int:
        """Bytes to send."""
        return self.sample.bytes - self.offset


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do.

    Args:
        check: files whose content must be read before it is known whether they are whole; plan again afterwards.
        transfers: files to send.
        adopt: files that are whole but that the local manifest does not tell so.
        done: ids of files that need nothing.
        conflicts: ids whose local dump is of another prompt; nothing must be done before a person decides.
        stale_parts: part files of content that nobody wants any more.
    """

    check: tuple[Sample, ...]
    transfers: tuple[Transfer, ...]
    adopt: tuple[Sample, ...]
    done: tuple[str, ...]
    conflicts: tuple[str, ...]
    stale_parts: tuple[str, ...]

    @property
    def bytes_to_send(self) -> int:
        """Bytes that will come over the network, and room that they need."""
        return sum(t.left for t in self.transfers)


def part_name(sample: Sample) -> str:
    """Name of the unfinished file. It names the content, so that a part of an older dump is never continued."""
    return f"{sample.file}.{sample.checksum.partition(':')[2]}.part"


def plan(
    remote: Mapping[str, Sample],
    held: Mapping[str, Held],
    files: Mapping[str, Stamp],
    parts: Mapping[str, int],
    checked: Mapping[str, bool],
) -> Plan:
    """Compare the host's manifest with what is here.

    Args:
        remote: the host's samples by id; failed ones are passed over.
        held: the local manifest by id.
        files: the local dumps by id.
        parts: local part files: name -> bytes.
        checked: id -> whether the file's content has the host's checksum; for ids of an earlier plan's ``check``.
    """
    wanted = [sample for sample in remote.values() if sample.ok]
    conflicts = tuple(s.id for s in wanted if s.id in held and _is_another_prompt(s, held[s.id].sample))
    states = {s.id: _state(s, held.get(s.id), files.get(s.id), checked.get(s.id)) for s in wanted}
    transfers = tuple(
        Transfer(s, _offset(s, parts), states[s.id])
        for s in wanted
        if states[s.id] in ("new", "changed", "lost", "damaged")
    )
    continued = {part_name(t.sample) for t in transfers if t.offset}
    return Plan(
        check=tuple(s for s in wanted if states[s.id] == "check"),
        transfers=transfers,
        adopt=tuple(s for s in wanted if states[s.id] == "adopt"),
        done=tuple(s.id for s in wanted if states[s.id] == "done"),
        conflicts=conflicts,
        stale_parts=tuple(sorted(set(parts) - continued)),
    )


def streams_for(transfers: Sequence[Transfer], most: int) -> int:
    """How many streams are worth their connections, each a third of a second."""
    total = sum(t.left for t in transfers)
    return max(1, min(most, len(transfers), -(-total // FIRST)))


def cut(transfers: deque[Transfer], left: int, streams: int) -> tuple[Transfer, ...]:
    """Take the next request from the front: large, so that its answer fills the line; near the end smaller and smaller,
    so that all streams are done at the same time.

    Args:
        transfers: those that are left; what is taken is removed.
        left: their bytes.
        streams: that share them.
    """
    share = max(SMALLEST, min(LARGEST, left // (4 * streams)))
    taken, size = list[Transfer](), 0
    while transfers and len(taken) < FILES and (not taken or size + transfers[0].left <= share):
        taken.append(transfers.popleft())
        size += taken[-1].left
    return tuple(taken)


def _state(sample: Sample, held: Held | None, file: Stamp | None, checked: bool | None) -> str:
    if file is None:
        return "new" if held is None else "lost"
    same = held is not None and (held.sample.checksum, held.sample.bytes) == (sample.checksum, sample.bytes)
    otherwise = "damaged" if same or held is None else "changed"
    if file.size != sample.bytes:
        return otherwise
    if same and held is not None and held.stamp == file and checked is None:
        return "done"
    return {None: "check", True: "adopt", False: otherwise}[checked]


def _offset(sample: Sample, parts: Mapping[str, int]) -> int:
    size = parts.get(part_name(sample), 0)
    return size if size <= sample.bytes else 0


def _is_another_prompt(remote: Sample, local: Sample) -> bool:
    return bool(remote.token_hash and local.token_hash) and remote.token_hash != local.token_hash
