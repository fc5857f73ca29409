"""What one stream is asked for, and the queue that all streams take it from."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from hsops.core.checksum import Digest
from hsops.fetch.plan import File, Transfer

LARGEST, SMALLEST = 64 << 20, 1 << 20  # bytes of one request
FILES = 256  # in one request: its text must fit into what lies between two sockets, unread
WHOLE = 128 << 20  # a file up to here comes in one piece: its checksum is known when its last byte is
SLICE = 8 << 20  # of a file: what is smaller than two is not cut; each piece is a line in a list
LAST = 2 << 20  # no smaller piece: what one stream still brings while the others have nothing to do


@dataclass(eq=False, slots=True)
class Piece:
    """A stretch of a file.

    Args:
        transfer: of which file.
        start, end: what its checksum covers.
        at: the first byte that is missing.
        alone: it is the whole file.
        digest: of [start, at), when this process received it.
        tries: how often it came with a wrong checksum.
    """

    transfer: Transfer
    start: int
    end: int
    at: int
    alone: bool
    digest: Digest | None = None
    tries: int = 0

    @property
    def left(self) -> int:
        """Bytes to send."""
        return self.end - self.at


def pieces_of(transfer: Transfer) -> list[Piece]:
    """What is missing of a file."""
    if transfer.part.kept is None:
        return [Piece(transfer, 0, transfer.file.bytes, transfer.part.size, alone=True)]
    return [Piece(transfer, start, end, start, alone=False) for start, end in transfer.gaps]


class Pieces:
    """The queue. Requests are large, so that their answers fill the line; near the end smaller and smaller, so that all
    streams are done at the same time. A file that is large, or one of the last, is cut into pieces for several streams.

    Args:
        transfers: what is known from the start.
        closed: nothing more will be added.
    """

    def __init__(self, transfers: Iterable[Transfer] = (), *, closed: bool = True) -> None:
        self._todo, self.closed = deque[Piece](), closed
        self._changed = threading.Condition()  # its lock may be taken twice
        self._under_way = 0  # pieces that a stream has
        self._open: dict[str, int] = {}  # by part file: how many pieces are not here yet
        self._latest: dict[str, str] = {}  # by name: the part file of its newest content
        self.left = self.total = self.files = 0  # bytes that no stream has taken; of all; files
        self.add(transfers)

    def add(self, transfers: Iterable[Transfer]) -> None:
        """More work."""
        with self._changed:
            for transfer in transfers:
                file = transfer.file
                self._latest[file.name] = part = file.part
                if part in self._open:  # this very content is on its way: two would write to one part file
                    continue
                pieces, left = pieces_of(transfer), transfer.left
                self._open[part] = len(pieces)
                self._todo += pieces
                self.left, self.total, self.files = self.left + left, self.total + left, self.files + 1
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing more will be added."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    @property
    def over(self) -> bool:
        """All of it came or was refused."""
        with self._changed:
            return self.closed and not self._todo and not self._under_way

    @property
    def waits(self) -> bool:
        """There is something that no stream has taken."""
        return bool(self._todo)

    def wait(self, seconds: float) -> None:
        """Until there may be something to take."""
        with self._changed:
            if not self._todo:
                self._changed.wait(seconds)

    def take(self, streams: int) -> tuple[Piece, ...]:
        """The next request; nothing when there is none now. ``streams`` share what is left."""
        with self._changed:
            share = max(SMALLEST, min(LARGEST, self.left // (4 * streams)))
            taken, size = list[Piece](), 0
            while self._todo and len(taken) < FILES:
                first = self._todo[0]
                most = left if first.alone and (left := first.left) <= SMALLEST else self._most(first, share, streams)
                if taken and size + min(most, first.left) > share:
                    break
                taken.append(self._next(most))
                size += taken[-1].left
            self.left -= size
            self._under_way += len(taken)
            return tuple(taken)

    def give_back(self, pieces: Iterable[Piece]) -> None:
        """They did not come."""
        with self._changed:
            for piece in pieces:
                self._todo.append(piece)
                self.left += piece.left
                self._under_way -= 1
            self._changed.notify_all()

    def settle(self, piece: Piece) -> bool:
        """It came, or its file never will; says whether it was the last of its file."""
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()
            return self._settle(piece)

    def came(self, pieces: Iterable[Piece]) -> list[bool]:
        """They are here: of each whether it was the last of its file. They are under way still, until ``done``."""
        with self._changed:
            return [self._settle(piece) for piece in pieces]

    def done(self, count: int) -> None:
        """So many that came are handed on, and nothing is left to do for them: it may be over now."""
        with self._changed:
            self._under_way -= count
            self._changed.notify_all()

    def _settle(self, piece: Piece) -> bool:
        part = piece.transfer.file.part  # not the name: two versions of a file may be under way
        left = self._open.pop(part) - 1
        if left:
            self._open[part] = left
        return not left

    def abandon(self, piece: Piece) -> None:
        """Its file will not come: what no stream has taken of it is not wanted any more."""
        with self._changed:
            part = piece.transfer.file.part
            dropped = [p for p in self._todo if p.transfer.file.part == part] if self._open[part] > 1 else []
            if dropped:
                self._todo = deque(p for p in self._todo if p.transfer.file.part != part)
                self._open[part] -= len(dropped)
                left = sum(p.left for p in dropped)
                self.left, self.total = self.left - left, self.total - left
            self.settle(piece)

    def is_latest(self, file: File) -> bool:
        """No newer content of that name was added since: an older one that comes late must not replace it."""
        return self._latest.get(file.name) == file.part

    def _most(self, piece: Piece, share: int, streams: int) -> int:
        """Bytes of it that one stream may take."""
        few = len(self._todo) < streams and piece.left > 2 * SLICE
        if piece.alone and piece.left <= WHOLE and not few:
            return piece.left
        return max(LAST if streams > 1 else SLICE, share)

    def _next(self, most: int) -> Piece:
        piece = self._todo[0]
        if piece.left <= most + min(most, SLICE) // 2:
            return self._todo.popleft()
        self._open[piece.transfer.file.part] += 1
        cut = piece.at + most
        first = Piece(piece.transfer, piece.start, cut, piece.at, alone=False, digest=piece.digest)
        self._todo[0] = Piece(piece.transfer, cut, piece.end, cut, alone=False)
        return first
