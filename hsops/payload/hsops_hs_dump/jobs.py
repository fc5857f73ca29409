"""What goes from the scheduler to the dispatcher, and from there to the writer threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .blocks import Block
from .rows import Piece, Ticket

if TYPE_CHECKING:
    from .files import DumpFile
    from .scribe import Scribe


class Staged(Protocol):
    """One pass's rows, kept where the model runs."""

    @property
    def dtype(self) -> str:
        """safetensors' name."""
        ...

    @property
    def item(self) -> int:
        """Bytes of one element."""
        ...

    @property
    def hidden(self) -> int:
        """H."""
        ...

    @property
    def last(self) -> bool:
        """There is a state after the last norm."""
        ...

    def token_bytes(self) -> bytes:
        """The pass's token ids as int64, little endian. Blocks until the pass is computed."""
        ...

    def blocks(self, tick: Callable[[], None]) -> Generator[Block, None, None]:
        """The rows in order; each block comes with one hold. Ends when the stage's memory is not needed any more.

        Args:
            tick: called now and then while it waits for writers.
        """
        ...


@dataclass
class Pass:
    """A pass that waits for its rows to be written.

    Args:
        staged: its rows.
        pieces: whose they are.
        room: gives back its place in the queue.
    """

    staged: Staged
    pieces: Sequence[Piece]
    room: threading.BoundedSemaphore
    released: bool = False

    def release(self) -> None:
        """Make room for another pass; only once, however often it is called."""
        if not self.released:
            self.released = True
            self.room.release()


@dataclass(eq=False)
class Entry:
    """A sample on its way to a file.

    Args:
        ticket: whose rows.
        scribe: the only one that touches its file.
        size: bytes of its rows; 0 when it never had any.
        begin: makes its file.
        file: made with its first row.
        idle: seconds since rows came, counted by the dispatcher's ticks, so that a stopped process does not age.
        closed: there is a line in the manifest, or nobody wants one.
    """

    ticket: Ticket
    scribe: Scribe
    size: int = 0
    begin: Callable[[], DumpFile] | None = None
    file: DumpFile | None = None
    idle: int = 0
    closed: bool = False


@dataclass
class Rows:
    """Rows of one sample in one block, which is held for them."""

    entry: Entry
    block: Block
    views: Sequence[memoryview]
    position: int
    ids: bytes
    last: bool
    held: bool = True

    def release(self) -> None:
        """The block is not needed any more; only once, however often it is called."""
        if self.held:
            self.held = False
            self.block.done()


@dataclass
class End:
    """A sample that fails with a reason, or without one is forgotten because a newer request replaces it."""

    entry: Entry
    reason: str
