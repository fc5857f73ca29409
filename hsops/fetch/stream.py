"""What comes over one line, and the part files that it goes to."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hsops.core.checksum import Digest, checksum_of, checksum_of_bytes, kind_of
from hsops.fetch.folder import Folder
from hsops.fetch.line import Line, needs_sum
from hsops.fetch.pieces import Piece
from hsops.fetch.plan import File, Kept
from hsops.fetch.trouble import Trouble, misplaced
from hsops.fetch.wire import Data, End, Event, LostStreamError, Reader, Refused, Whole

AHEAD = 2  # requests under way on one line
_ANOTHER = "the file is another one than when it was listed"
_TELL = 1 << 20  # bytes of small files that are written and told at once


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a stream reports, and where its work comes from; called from its thread.

    Args:
        take: the next request; waits for one when it may.
        moved: so many bytes are in a part file.
        landed: these pieces have all their bytes and the right checksum; their files as they were on the host.
        wrong: the piece came with a wrong checksum.
        trouble: this piece's file will not come.
    """

    take: Callable[[bool], tuple[Piece, ...]]
    moved: Callable[[int], None]
    landed: Callable[[Sequence[tuple[Piece, File]]], None]
    wrong: Callable[[Piece], None]
    trouble: Callable[[Piece, Trouble], None]


class Receiver:
    """Receives batch after batch over one line.

    Args:
        line: where they come from.
        folder: the local one.
        hooks: told what happens.
        host: its name, for errors.
        sums: the kind of checksum that pieces are to have; a host may know another only.
        always: also those whose file's checksum the manifest tells.
    """

    def __init__(
        self, line: Line, folder: Folder, hooks: Hooks, host: str, *, sums: str = "xxh3", always: bool = False
    ) -> None:
        self.line, self.hooks = line, hooks
        self.moved = self.settled = 0  # bytes; pieces that came or were refused
        self.begun = False
        self._sums, self._always = sums, always
        self._folder, self._reader = folder, Reader(line.read, host)
        self._asked: deque[_Batch] = deque()
        self._small: list[tuple[Piece, File, bytes]] = []  # small files that are here and not written yet
        self._small_bytes = 0

    def run(self, stop: threading.Event) -> None:
        """Receive until there is no more to take or ``stop`` is set; afterwards ``rest()`` is what did not come.

        The next batch is asked for before the one under way has come: a round trip costs no time.

        Raises:
            UnreachableError: the link was lost.
            AgentError, RemoteError: the agent refused, or what came makes no sense.
            OSError: a part file cannot be written.
        """
        try:
            self._reader.begin()
            self.begun = True
            while not stop.is_set() and self._ask():
                self._receive(self._asked[0], stop)
                if not stop.is_set():
                    self._asked.popleft()
        except LostStreamError as error:
            raise LostStreamError(self.line.why() or error.message, host=error.host) from None
        finally:
            for batch in self._asked:
                batch.close()

    def rest(self) -> tuple[Piece, ...]:
        """The pieces that were not settled, to be continued where they end."""
        return tuple(piece for batch in self._asked for piece in batch.rest())

    def _ask(self) -> bool:
        """Have two requests under way, while there is work; says whether there is one."""
        while len(self._asked) < AHEAD and (pieces := self.hooks.take(not self._asked)):
            self._asked.append(_Batch(pieces, self._folder, self._digest))
            self.line.ask(pieces, self._sums, always=self._always)
        return bool(self._asked)

    def _digest(self, piece: Piece) -> Digest:
        return Digest(self._sums if needs_sum(piece) else kind_of(piece.transfer.file.checksum))

    def _receive(self, batch: _Batch, stop: threading.Event) -> None:
        try:
            self._receive_all(batch, stop)
        finally:
            self._tell()

    def _receive_all(self, batch: _Batch, stop: threading.Event) -> None:
        for event in self._reader.events(batch.pieces):
            if stop.is_set():
                return
            if batch.is_settled(event.index):  # the rest of what has no place here
                continue
            piece = batch.pieces[event.index]
            try:
                self._take(batch, piece, event)
            except OSError as error:
                if not self._folder.is_of_one(error):
                    raise
                batch.settle(event.index)
                file = piece.transfer.file
                self.hooks.trouble(piece, misplaced(file, error, self._folder.part(file)))

    def _take(self, batch: _Batch, piece: Piece, event: Event) -> None:
        if isinstance(event, Whole):
            self._take_small(batch, piece, event)
            return
        if isinstance(event, Data):
            batch.write(event)
            self._count(len(event.data))
            return
        self.settled += 1
        if isinstance(event, Refused):
            batch.settle(event.index)
            self.hooks.trouble(piece, Trouble(piece.transfer.file.id, event.code, event.message))
        else:
            self._judge(batch, event, piece)

    def _take_small(self, batch: _Batch, piece: Piece, event: Whole) -> None:
        """As ``_judge``, but before a byte is written; told together with others, as each costs more than its bytes."""
        file, data = piece.transfer.file, event.data
        if not piece.alone:  # its list of pieces must be kept
            batch.write(Data(event.index, 0, memoryview(data)))
            self._count(len(data))
            self._judge(batch, End(event.index, event.inode, event.checksum), piece)
            return
        needed = needs_sum(piece)
        own = checksum_of_bytes(data, self._sums if needed else kind_of(file.checksum))
        good = file.checksum in ("", own)
        if event.checksum or needed:
            again = lambda kind: checksum_of_bytes(data, kind)  # noqa: E731 - seldom needed
            good = good and self._is(event.checksum, own, needed=needed, again=again)
        changed = file.inode is not None and event.inode != file.inode
        batch.settle(event.index)
        self.settled, self._small_bytes = self.settled + 1, self._small_bytes + len(data)
        if changed:
            self.hooks.trouble(piece, Trouble(file.id, "changed", _ANOTHER))
        elif not good:
            self.hooks.wrong(piece)
        else:
            self._small.append((piece, file.arrived(file.checksum or own, event.inode), bytes(data)))
        if self._small_bytes >= _TELL:
            self._tell()

    def _tell(self) -> None:
        count, self._small_bytes = self._small_bytes, 0
        small, self._small = self._small, []
        bad = self._folder.write_parts([(file, data) for _, file, data in small]) if small else {}
        came = [(piece, file) for piece, file, _ in small if file.part not in bad]
        misses = [one for one in small if one[1].part in bad] if bad else ()
        if count := count - sum(len(data) for _, _, data in misses):
            self._count(count)  # first: a pull is over when all has landed
        for piece, file, _ in misses:
            self.hooks.trouble(piece, misplaced(file, bad[file.part], self._folder.part(file)))
        if came:
            self.hooks.landed(came)

    def _count(self, count: int) -> None:
        self.moved += count
        self.hooks.moved(count)

    def _judge(self, batch: _Batch, end: End, piece: Piece) -> None:
        """All of it came: whether it is what it must be. If not, nothing of it can be trusted."""
        digest = batch.digest(end.index)  # an empty rest has sent no data
        batch.settle(end.index)
        file, own = piece.transfer.file, str(digest)
        if file.inode is not None and end.inode != file.inode:
            self.hooks.trouble(piece, Trouble(file.id, "changed", _ANOTHER))
            return
        part = self._folder.part(file)
        again = lambda kind: checksum_of(part, kind, piece.start, piece.end)  # noqa: E731 - seldom needed
        good = self._is(end.checksum, own, needed=needs_sum(piece), again=again)
        if not good or (piece.alone and file.checksum not in ("", own)):
            self.hooks.wrong(piece)
            return
        if not piece.alone and piece.start < piece.end:  # of an empty rest there is nothing to keep
            self._folder.keep(file, Kept(piece.start, piece.end, own))
        checksum = file.checksum or (own if piece.alone else "")
        inode = end.inode if file.inode is not None or batch.came_at_once(end.index) else None
        self.hooks.landed(((piece, file.arrived(checksum, inode)),))

    def _is(self, told: str, own: str, *, needed: bool, again: Callable[[str], str]) -> bool:
        """Compare with what the sender told; a kind that it does not know is not asked for again."""
        if not told:
            return not needed
        if kind_of(told) == kind_of(own):
            return told == own
        try:
            found = again(kind_of(told))
        except ValueError:  # a kind that nobody knows: it is never asked for
            return False
        if needed:
            self._sums = kind_of(told)
        return found == told


class _Batch:
    """One request, and the part file that is being written of it."""

    def __init__(self, pieces: tuple[Piece, ...], folder: Folder, digest: Callable[[Piece], Digest]) -> None:
        self.pieces, self._folder, self._new = pieces, folder, digest
        self._from = tuple(piece.at for piece in pieces)
        self._settled: set[int] = set()
        self._open: tuple[int, int] | None = None  # index, file descriptor

    def rest(self) -> Iterator[Piece]:
        for i, piece in enumerate(self.pieces):
            if i not in self._settled:
                yield piece

    def write(self, event: Data) -> None:
        piece, data = self.pieces[event.index], event.data
        digest, handle = self.digest(event.index), self._handle(event.index)
        digest.update(data)
        while data:
            count = os.pwrite(handle, data, piece.at)
            data, piece.at = data[count:], piece.at + count

    def digest(self, index: int) -> Digest:
        """Of all so far. What came in an earlier run is read back; what comes now is summed as it passes, while it is
        in the processor's cache.
        """
        piece = self.pieces[index]
        self._handle(index)
        if piece.digest is None:
            piece.digest = self._new(piece)
            if piece.at > piece.start:
                piece.digest.update_from(self._folder.part(piece.transfer.file), piece.start, piece.at)
        return piece.digest

    def came_at_once(self, index: int) -> bool:
        """Every byte of its file is of this answer: of the rest of a file nobody tells whether it is the same one's."""
        return self.pieces[index].alone and self._from[index] == 0

    def is_settled(self, index: int) -> bool:
        return index in self._settled

    def settle(self, index: int) -> None:
        self.close()
        self._settled.add(index)

    def close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _handle(self, index: int) -> int:
        if self._open is None or self._open[0] != index:
            self.close()
            piece = self.pieces[index]
            offset = piece.at if piece.alone else None
            self._open = index, self._folder.open_part(piece.transfer.file, offset)
        return self._open[1]
