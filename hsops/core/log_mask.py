"""A server's log without its keys: SGLang prints the arguments that it was given."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hsops.core.secret import MASK, without_keys

_WORDS = (b"api_key", b"api-key", b"apikey", b"bearer")  # what a key stands behind, as ``without_keys`` knows them
_LEAST = 8  # characters of a key that is masked wherever it stands: a short one may be any word of the log
_LONGEST = 1 << 20  # bytes of one line that are held back


class LogMask:
    """Feeds on bytes cut anywhere; gives back the same bytes, but for keys. Holds back only what may be one.

    Args:
        known: keys of the run's command line.
    """

    def __init__(self, known: Sequence[str] = ()) -> None:
        self._known = tuple(key.encode("utf-8", "surrogateescape") for key in known if len(key) >= _LEAST)
        words = (*_WORDS, *(key.lower() for key in self._known))
        self._word = re.compile(b"|".join(map(re.escape, words)), re.IGNORECASE)
        self._heads = frozenset(word[:size] for word in words for size in range(1, len(word)))
        self._longest_head = max(map(len, self._heads))
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """What of it can be shown now."""
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > _LONGEST or not self._may_go_on(data[end:]):
            end = len(data)
        self._rest = data[end:]
        return self._masked(data[:end])

    def tail(self) -> bytes:
        """What was held back, at the end of a log."""
        rest, self._rest = self._rest, b""
        return self._masked(rest)

    def _may_go_on(self, line: bytes) -> bool:
        """A key may follow, or be cut, where ``line`` ends."""
        end = line[-self._longest_head :].lower()
        return bool(self._word.search(line)) or any(end[at:] in self._heads for at in range(len(end)))

    def _masked(self, data: bytes) -> bytes:
        if not self._word.search(data):
            return data
        for key in self._known:
            data = data.replace(key, MASK.encode())
        lines = data.decode("utf-8", "surrogateescape").split("\n")
        return "\n".join(map(without_keys, lines)).encode("utf-8", "surrogateescape")
