"""A prompt, as every command that reads prompts works on it. ``hsops.core.prompt_files`` reads them."""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass

from hsops.core.errors import Fault

LARGEST_TOKEN = 2**31 - 1
SHOWN = 100  # faults; a file that is wrong throughout needs no more


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    Args:
        id: becomes the dump's file name.
        line: in the file, from 1; with ``row`` the number of its row in a dataset, from 0.
        tokens: ``token_bytes`` of the token ids; empty while only ``text`` or ``messages`` are known.
        text: to be tokenised; empty when ``tokens`` are given.
        mask: ``loss_mask``, one byte a token, 0 or 1: what a drafter learns from. Empty when none is given.
        messages: to be rendered by the model's chat template: JSON of ``{"messages": [...]}``, with ``tools`` where
            there are some. Empty when ``tokens`` or ``text`` are given.
        row: it comes from a dataset.
    """

    id: str
    line: int
    tokens: bytes
    text: str = ""
    mask: bytes = b""
    messages: str = ""
    row: bool = False

    @property
    def count(self) -> int:
        """Number of tokens."""
        return len(self.tokens) // 8

    @property
    def place(self) -> str:
        """``line 3`` or ``row 3``."""
        return f"{'row' if self.row else 'line'} {self.line}"

    def ids(self) -> array[int]:
        """The token ids as integers."""
        ids = array("q", self.tokens)
        if sys.byteorder == "big":
            ids.byteswap()
        return ids

    def fault(self, file: str, where: str, message: str) -> Fault:
        """A fault of this prompt.

        Args:
            file: name of the file or dataset.
            where: ``input_ids[3]``; empty: all of it.
            message: what is wrong.
        """
        if self.row:
            return Fault(file, 0, 0, f"{self.place}: {where}" if where else self.place, message)
        return Fault(file, self.line, 1, where, message)


def shorten(faults: list[Fault], more: int = 0) -> list[Fault]:
    """At most ``SHOWN`` faults, and one that says how many more there are, with ``more`` that are not listed."""
    more += max(0, len(faults) - SHOWN)
    if not more:
        return faults
    return [*faults[:SHOWN], Fault(faults[0].file, 0, 0, "", f"and {more:,} more faults")]
