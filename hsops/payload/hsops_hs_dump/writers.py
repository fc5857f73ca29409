"""Who writes the rows of which request: the data set is rank 0's, check requests are written by every rank."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .claim import Claim
from .hello import say
from .jobs import Staged
from .rows import Failure, Piece, Ticket
from .settings import Settings
from .writer import Writer

CHECK = "check"  # in the dump folder, apart from the data set
CHECK_SLOTS = 2  # of pinned memory, on ranks that have none yet: checks are small
RETRY_S = 10.0  # a pass asks for a check request's writer again and again: one that failed is not tried each time


class Writers:
    """The writers of this process.

    Args:
        settings: what was deployed.
        facts: what every manifest line repeats.
        rank: of this process.
        prepare: (ring slots): takes what memory the copies need.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        settings: Settings,
        facts: dict[str, Any],
        rank: int,
        prepare: Callable[[int], None],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._facts, self._rank, self._prepare = settings, facts, rank, prepare
        self._now, self._retry_at = now, -math.inf
        self._claim = Claim(settings, rank, now=now)
        self._data: Writer | None = None
        self._check: Writer | None = None

    def open(self) -> None:
        """Claim the folder, and open the data set's writer where this rank has one.

        Raises:
            TakenError: another server writes there.
            OSError: the folder cannot be written.
        """
        self._claim.take()
        try:
            if self._rank == 0 or self._settings.check_ranks:
                self._data = self._open_data()
        except BaseException:
            self._claim.release()  # who writes nothing keeps nobody out
            raise

    def keeps(self, pieces: Sequence[Piece]) -> bool:
        """Whether this rank writes any of these rows."""
        return any(not piece.ticket.lost and self._of(piece.ticket) is not None for piece in pieces)

    def submit(self, staged: Staged, pieces: Sequence[Piece]) -> None:
        """Hand over a pass; what a writer does not take fails. A pass may hold rows of both kinds."""
        lost = self._claim.problem()
        for check in (False, True):
            mine = [piece for piece in pieces if piece.ticket.check == check]
            writer = self._of(mine[0].ticket) if mine else None
            if writer and (problem := lost or writer.submit(staged, mine)):
                self.fail_all(mine, problem)

    def fail_all(self, pieces: Sequence[Piece], reason: str) -> None:
        """Give up all samples of a pass."""
        for piece in pieces:
            self.fail(Failure(piece.ticket, reason))

    def fail(self, failure: Failure) -> None:
        """Give up a sample."""
        if writer := self._of(failure.ticket):
            writer.fail(failure)

    def drop(self, ticket: Ticket) -> None:
        """Forget a sample that a newer request for the same id replaces."""
        if writer := self._of(ticket):
            writer.drop(ticket)

    def close(self) -> None:
        """Write what was handed over, then end."""
        for writer in (self._data, self._check):
            if writer:
                writer.close()
        self._claim.release()

    def _of(self, ticket: Ticket) -> Writer | None:
        if not ticket.check:
            return self._data
        if self._check is None and self._now() >= self._retry_at:
            self._check = self._open_check()
            self._retry_at = self._now() + RETRY_S
        return self._check

    def _open_data(self) -> Writer:
        self._prepare(self._settings.ring_slots)
        folder = self._folder("") if self._rank else self._settings.dump_dir
        return Writer(folder, self._settings, self._facts)

    def _open_check(self) -> Writer | None:
        """Made for the first check request; most servers never see one."""
        try:
            self._prepare(CHECK_SLOTS)
            return Writer(self._folder(CHECK), replace(self._settings, writers=1), self._facts, tells=False)
        except Exception as error:  # noqa: BLE001 - costs the check, not the pass
            say(f"check requests are not written: {type(error).__name__}: {error}")
            return None

    def _folder(self, within: str) -> str:
        return os.path.join(self._settings.dump_dir, within, f"rank{self._rank}")
