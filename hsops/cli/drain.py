"""``hsops extract --drain DIR``: extract and fetch at once, so that the host holds only what is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hsops.cli import fetch
from hsops.cli.wiring import Session
from hsops.core.dumps import Sample, latest
from hsops.core.errors import HsopsError, UnreachableError
from hsops.core.events import Note, Together
from hsops.core.worker import Worker
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.fetch.fetch import Fetched
    from hsops.remote.dumps import Lost

INTERRUPTED = 130
TICK_S = 0.5
PAUSE_S = 2.0  # between two looks at several servers
LAST_S = 10.0  # for a fetch to end in order; whatever moment it is killed at, the next one continues
Check = Callable[[], None]


def drained(
    session: Session,
    servers: Sequence[str],
    to: str,
    of: frozenset[str],
    drive: Callable[[Check], Outcome],
    *,
    lost: Mapping[str, Lost],
) -> Outcome:
    """Drive an extract, and meanwhile fetch and evict; over when the extract has ended and everything is here.

    Args:
        session: the extract's; the fetch has connections of its own.
        servers: whose dumps.
        to: the local folder.
        of: ids of the extract's samples.
        drive: the extract; calls what it is given twice a second, and ends when that raises.
        lost: by server, what its host has not any more, and it makes again.

    Raises:
        HsopsError: the extract's, or the fetch's, whichever failed first; the other has ended in order by then.
    """
    beside = _Beside(session, servers, to, of, lost)
    session.console.emit(Together(("extract", "fetch")))
    try:
        extracted = beside.drive(drive)
        if extracted.exit_code == INTERRUPTED:
            beside.stop()
            return extracted
        if extracted.exit_code:
            return _joined(extracted, beside.finish_after(extracted.lines))
        return _joined(extracted, beside.finish(extracted.lines))
    except BaseException:  # Ctrl-C, too
        beside.stop()
        raise
    finally:
        session.console.emit(Together())


def home(to: str) -> dict[str, Sample]:
    """Dumps that are here, by id. A host that was started anew has an empty RAM disk, and knows nothing of them."""
    from hsops.core.manifest import read_manifest

    folder, found = Path(to).expanduser(), dict[str, Sample]()
    with suppress(HsopsError, OSError):  # none yet, or it is no folder: the fetch says so
        for sample in latest(read_manifest(folder)[0]).values():
            with suppress(OSError):
                if sample.ok and (folder / sample.file).lstat().st_size == sample.bytes:
                    found[sample.id] = sample
    return found


class _StoppedError(HsopsError):
    """The fetch was told to end."""


class _Beside:
    """The fetch, in a thread. It begins when the extract has something to send."""

    def __init__(
        self, session: Session, servers: Sequence[str], to: str, of: frozenset[str], lost: Mapping[str, Lost]
    ) -> None:
        self._session, self._servers, self._emit = session.beside(), tuple(servers), session.console.emit
        self._of, self._lost, self._options = of, lost, fetch.Options(to, follow=len(servers) == 1, evict=True)
        self._over, self._stopped = threading.Event(), threading.Event()
        self._outcome: Outcome | None = None
        self._error: HsopsError | None = None
        self._thread = Worker(self._work, "drain")

    def drive(self, drive: Callable[[Check], Outcome]) -> Outcome:
        """The extract; where it fails, what is on the host is brought all the same."""
        try:
            return drive(self._check)
        except HsopsError as error:
            if error is not self._error and self._thread.ident:
                self.finish_after([error.message])
            raise

    def finish(self, told: Iterable[str] = ()) -> Outcome:
        """The extract has ended: wait until everything is here; what it ``told`` is not lost with a fetch that fails.

        Raises:
            HsopsError: why it is not.
        """
        self._over.set()
        self._begin()
        while self._thread.is_alive():
            self._thread.join(TICK_S)
        self._thread.check()
        if self._error is not None:
            for line in told:
                self._emit(Note(line))
            raise self._error
        assert self._outcome
        return self._outcome

    def finish_after(self, why: Iterable[str]) -> Outcome | None:
        """The extract has failed, which is what counts: bring what is there, and only tell why that fails."""
        for line in why:
            self._emit(Note(line))
        self._emit(Note("the extract has ended; what it left on the host is brought here", level="warn"))
        try:
            return self.finish()
        except HsopsError as error:
            self._emit(Note(f"the fetch failed too: {error.message}", level="warn"))
        return None

    def stop(self) -> None:
        """End it now. Idempotent."""
        self._stopped.set()
        self._over.set()
        if self._thread.ident:
            self._thread.join(LAST_S)

    def _check(self) -> None:
        self._begin()
        self._thread.check()
        if self._error is not None:
            raise self._error

    def _begin(self) -> None:
        if not self._thread.ident:
            self._thread.start()

    def _work(self) -> None:
        try:
            beside = fetch.Beside(self._of, self._over.is_set, self._end, self._lost)
            if len(self._servers) == 1:
                self._outcome = fetch.pull(self._session, self._servers[0], self._options, beside=beside)
            else:
                self._outcome = self._in_turn(beside)
        except HsopsError as error:
            self._error = error

    def _in_turn(self, beside: fetch.Beside) -> Outcome:
        """Of several servers into one folder: what each has by now, again and again, and once more after the end."""
        from hsops.render import fetch as render

        shared, lost = dict[str, "Fetched"](), dict[str, UnreachableError]()
        while True:
            last, outcomes = self._over.is_set(), dict[str, Outcome]()
            for name in self._servers:
                if outcome := self._pull_or_tell(name, shared, beside, lost):
                    outcomes[name] = outcome
            if last and lost:  # what the others had is here by now
                raise next(iter(lost.values()))
            if last:
                return render.together(outcomes)
            self._over.wait(PAUSE_S)
            self._end()

    def _pull_or_tell(
        self, name: str, shared: dict[str, Fetched], beside: fetch.Beside, lost: dict[str, UnreachableError]
    ) -> Outcome | None:
        """A host that is ``lost`` is told once: the others go on, and so does the extract."""
        try:
            outcome = fetch.pull(self._session, name, self._options, shared, beside)
        except UnreachableError as error:
            if name not in lost:
                self._emit(Note(f"{error.message}; {name} is tried again", error.host or "", "warn"))
            lost[name] = error
            return None
        lost.pop(name, None)
        return outcome

    def _end(self) -> None:
        if self._stopped.is_set():
            raise _StoppedError("stopped")


def _joined(extracted: Outcome, fetched: Outcome | None) -> Outcome:
    """Both, as one; the first that failed gives the exit code."""
    if fetched is None:
        return extracted
    return replace(
        extracted,
        data={**extracted.data, "fetch": fetched.data},
        lines=[*extracted.lines, *fetched.lines],
        exit_code=extracted.exit_code or fetched.exit_code,
        errors=(*extracted.errors, *fetched.errors),
        summary=next(iter(fetched.lines), ""),
    )
