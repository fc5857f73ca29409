"""Why one file did not come, while the others do."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

from hsops.core.errors import HsopsError, SpaceError
from hsops.fetch.plan import File


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why one file did not come.

    Args:
        id: the sample, or the file's name.
        code: ``missing``, ``changed``, ``unreadable`` (as the agent said), ``checksum``, ``open``, ``name``,
            ``only-copy`` or ``local``: its place here is taken.
        message: one sentence.
    """

    id: str
    code: str
    message: str


def not_as_told(file: File) -> Trouble:
    """Its content is another."""
    return Trouble(file.id, "checksum", "the content is not what the host says")


def only_copy(file: File) -> Trouble:
    """What is here was removed on the host, which has another file of that name now."""
    text = "the file here is the only copy of what --evict removed on the host, where another has its name now; move or"
    return Trouble(file.id, "only-copy", f"{text} rename the one here, then run it again")


def misplaced(file: File, error: OSError, place: Path) -> Trouble:
    """Something else lies where it, or what is under way of it, is to be. ``place``: if the error does not say."""
    where, why = error.filename2 or error.filename or place, error.strerror
    return Trouble(file.id, "local", f"{where} is in its way here: {why}; move it away, then run it again")


def local_error(error: OSError, folder: Path) -> HsopsError:
    """A failed local write as an error for people."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SpaceError(f"{folder}: {error.strerror}", fix="free some room, then run it again")
    name = error.filename or folder
    return HsopsError(f"{name} cannot be written: {error.strerror}", fix="put that right, then run it again")
