"""What no manifest can say: each attempt of a prompt, when, where, and why it failed. SQLite, on this machine.

It decides nothing. A journal that is corrupt is moved aside, one that cannot be written is told once, and all goes on.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_state_path

from hsops.core.dumps import token_hash
from hsops.core.errors import LockedError
from hsops.core.events import Emit, Note
from hsops.core.prompt_files import STDIN
from hsops.core.prompt_tables import split_files
from hsops.core.prompts import Prompt

VERSION = 1
_BUSY_S = 5.0  # another extract of the same file, to another server, writes too
_TABLE = """
create table if not exists attempts (
  id text not null,        -- the prompt's
  tokens text not null,    -- token_hash of what was sent: rows of an id that meant something else are not its own
  server text not null,
  time real not null,      -- seconds since the epoch
  reason text not null     -- why there is no dump; empty: there is
)
"""


def journal_path(prompts: Path) -> Path | None:
    """The journal of a prompts file, a folder or a split; none of a pipe, whose name tells nothing of its content."""
    if str(prompts) == STDIN or not (prompts.is_file() or prompts.is_dir() or _is_split(prompts)):
        return None
    whole = prompts.absolute()
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in prompts.name)[:40]
    digest = hashlib.sha256(str(whole).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return user_state_path("hsops") / "extract" / f"{name}-{digest}.sqlite"


def _is_split(prompts: Path) -> bool:
    return not prompts.exists() and bool(split_files(prompts))


@contextmanager
def only_one(journal: Path, server: str, prompts: Path) -> Iterator[None]:
    """Hold a prompts file and a server for this process alone, on this machine. Without a place for it: go on.

    Raises:
        LockedError: another process has them.
    """
    path = journal.with_name(f"{journal.stem}.{server}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of it whatever happens to us
        except BlockingIOError:
            said = os.read(handle, 20).decode("ascii", "replace")
            raise LockedError(
                f"process {said or '?'} extracts {prompts} to {server} already",
                why="two would send the same prompts twice",
                fix="wait for it, or end it: the next one continues",
            ) from None
        except OSError:
            yield
            return
        with suppress(OSError):  # a full disk: it is locked all the same, only the message to others has no pid
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt of a prompt.

    Args:
        server: that it was sent to.
        time: when it ended, in seconds since the epoch.
        reason: why it has no dump; empty: it had.
    """

    server: str
    time: float
    reason: str


class Journal:
    """The journal of one prompts file. Safe to use from any thread, and by several processes.

    Args:
        path: of the database; None: keep nothing.
        emit: is told, once, when it cannot be kept.
    """

    def __init__(self, path: Path | None, emit: Emit) -> None:
        self.path, self._emit, self._lock = path, emit, threading.Lock()
        self._base: sqlite3.Connection | None = None
        if path and not self._open(path):
            self._set_aside(path)

    def close(self) -> None:
        """Idempotent."""
        with self._lock, suppress(sqlite3.Error):
            if self._base:
                self._base.close()
            self._base = None

    def attempted(self, prompt: Prompt, server: str, reason: str) -> None:
        """A prompt was sent; ``reason``: why it has no dump."""
        row = (prompt.id, token_hash(prompt.tokens), server, time.time(), reason)
        self._do(lambda base: base.execute("insert into attempts values (?, ?, ?, ?, ?)", row))

    def attempts(self, prompt: Prompt) -> tuple[Tried, ...]:
        """Every attempt of this very prompt, of earlier extracts too, the first one first."""
        wanted = (prompt.id, token_hash(prompt.tokens))
        query = "select server, time, reason from attempts where id = ? and tokens = ? order by rowid"
        found = self._do(lambda base: base.execute(query, wanted).fetchall())
        return tuple(Tried(str(server), float(at), str(reason)) for server, at, reason in found or ())

    def _open(self, path: Path) -> bool:
        """False when what lies there is no journal."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            base = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            base.execute("pragma journal_mode = wal")
            base.execute("pragma synchronous = off")  # a power cut may cost it: it decides nothing
            (version,) = base.execute("pragma user_version").fetchone()
            if version not in (0, VERSION) or base.execute("pragma quick_check(1)").fetchone() != ("ok",):
                base.close()
                return False
            base.execute(_TABLE)
            base.execute("create index if not exists by_id on attempts (id)")
            base.execute(f"pragma user_version = {VERSION}")
        except (sqlite3.OperationalError, OSError) as error:
            self._without(error)
        except sqlite3.DatabaseError:
            return False
        else:
            self._base = base
        return True

    def _set_aside(self, path: Path) -> None:
        aside = path.with_suffix(".unreadable")
        try:
            path.replace(aside)
            for more in ("-wal", "-shm"):
                path.with_name(path.name + more).unlink(missing_ok=True)
        except OSError as error:
            self._without(error)
            return
        self._emit(Note(f"the journal of earlier attempts is unreadable and was moved to {aside}", level="warn"))
        self._open(path)

    def _do(self, what: Callable[[sqlite3.Connection], Any]) -> Any:
        with self._lock:
            if self._base is None:
                return None
            try:
                return what(self._base)
            except sqlite3.Error as error:
                base, self._base = self._base, None
                with suppress(sqlite3.Error):
                    base.close()
                self._without(error)
                return None

    def _without(self, error: Exception) -> None:
        self._emit(Note(f"attempts are not written down: {self.path}: {error}", level="warn"))
