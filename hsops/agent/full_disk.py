"""What a stop goes on without: what it could not write, as the disk is full or read-only. Ending is what matters."""

import contextlib
import errno
from collections.abc import Iterator
from typing import Any

from hsops.agent import lock
from hsops.agent.protocol import Refusal

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Unwritten:
    """Collects it.

    Args:
        params: of the verb; with ``lock.force`` it also does without what else must be there before the first signal.
    """

    def __init__(self, params: "dict[str, Any]") -> None:
        self._params, self.told = params, list[str]()

    @contextlib.contextmanager
    def writing(self, what: str, *, must: bool = False) -> "Iterator[None]":
        """Around a write of ``what``.

        Raises:
            Refusal: disk-full, when it ``must`` be written and the client has not said ``lock.force``.
        """
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise
            said = f"{what} cannot be written: {error.strerror}"
            if must and not (self._params.get("lock") or {}).get("force"):
                raise Refusal("disk-full", f"{said}; nothing was ended") from None
            self.told.append(said)

    @contextlib.contextmanager
    def locked(self) -> "Iterator[lock.Held]":
        """The host's lock, kept alive, or none with ``force``."""
        with contextlib.ExitStack() as stack:
            held = lock.Held("", None)
            with self.writing("the host's lock", must=True):
                held = stack.enter_context(lock.held(self._params))
            stack.enter_context(held.kept_alive())
            yield held
