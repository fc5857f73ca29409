"""The files below any folder of a host, through the agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hsops.core.errors import HsopsError, RemoteError
from hsops.remote.agent import Agent

MOST = 5_000_000
"""Files in one listing: a host that tells of more than a tree can have is not believed, and costs no more memory."""
_LARGEST = 2**53


@dataclass(frozen=True, slots=True)
class Entry:
    """A regular file there.

    Args:
        path: below the folder, as the host says: not to be trusted as a path here.
        bytes: size.
        mtime_ns, inode: which file it was when it was looked at.
    """

    path: str
    bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder as it was.

    Args:
        entries: its files.
        open: paths of those that somebody still writes.
        skipped: how many others there are: ``link``, ``special``, and unreadable ``folder``.
    """

    entries: tuple[Entry, ...]
    open: frozenset[str]
    skipped: Mapping[str, int]


def list_tree(agent: Agent, folder: str, include: Sequence[str], exclude: Sequence[str]) -> Tree:
    """Look at it.

    Raises:
        AgentError: there is no such folder.
        HsopsError: it has too many files, or the answer makes no sense.
    """
    entries = list[Entry]()
    with agent.stream("tree-list", folder=folder, include=list(include), exclude=list(exclude)) as events:
        for event in events:
            try:
                if event["kind"] == "files":
                    entries.extend(_entries(event["files"]))
                elif event["kind"] == "result":
                    skipped = {str(kind): int(count) for kind, count in event["skipped"].items()}
                    return Tree(tuple(entries), frozenset(map(str, event["open"])), skipped)
            except (KeyError, TypeError, ValueError) as error:
                raise RemoteError(f"the list of {folder} makes no sense: {error}", host=agent.host.name) from None
            if len(entries) > MOST:
                raise HsopsError(
                    f"{folder} has more than {MOST:,} files", host=agent.host.name, fix="fetch its folders one by one"
                )
    raise RemoteError(f"the list of {folder} has no end", host=agent.host.name)


def _entries(raw: Sequence[Sequence[object]]) -> Iterator[Entry]:
    for path, size, mtime_ns, inode in raw:
        if not (
            isinstance(path, str) and isinstance(size, int) and isinstance(mtime_ns, int) and isinstance(inode, int)
        ):
            raise ValueError(f"{path!r:.80}")
        if not 0 <= size <= _LARGEST:
            raise ValueError(f"{path!r:.80} of {size} bytes")
        yield Entry(path, size, mtime_ns, inode)
