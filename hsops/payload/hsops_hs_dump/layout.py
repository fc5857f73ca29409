"""The bytes of a dump: a safetensors file whose rows can be written as they come.

Header, ``hidden_states [T, K(+1), H]``, perhaps ``last_hidden_states [T, H]``, ``token_ids [T] int64``. The header is
padded to whole pages, so that rows start on a page. T is known before the first row: the header comes first and every
row has its place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

PAGE = 4096
DTYPES = {"torch.float32": ("F32", 4), "torch.bfloat16": ("BF16", 2), "torch.float16": ("F16", 2)}


@dataclass(frozen=True)
class Layout:
    """Where things are in one dump.

    Args:
        dtype: safetensors' name of the states' dtype.
        item: bytes of one element.
        tokens: T.
        slots: K or K + 1.
        hidden: H.
        last: there is a state after the last norm.
        metadata: text to text, kept in the file.
    """

    dtype: str
    item: int
    tokens: int
    slots: int
    hidden: int
    last: bool
    metadata: dict[str, str]

    @property
    def rows(self) -> tuple[int, ...]:
        """Bytes of one row in each tensor of states, in the file's order."""
        state = self.hidden * self.item
        return (self.slots * state, state) if self.last else (self.slots * state,)

    @property
    def row(self) -> int:
        """Bytes of one row: all its states."""
        return sum(self.rows)

    def header(self) -> bytes:
        """The file's beginning, padded."""
        named = [("hidden_states", self.dtype, [self.tokens, self.slots, self.hidden], self.rows[0])]
        if self.last:
            named.append(("last_hidden_states", self.dtype, [self.tokens, self.hidden], self.rows[1]))
        named.append(("token_ids", "I64", [self.tokens], 8))
        tensors: dict[str, object] = {"__metadata__": self.metadata}
        end = 0
        for name, dtype, shape, row in named:
            begin, end = end, end + self.tokens * row
            tensors[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(tensors, separators=(",", ":")).encode()
        length = -(-(len(text) + 8) // PAGE) * PAGE - 8
        return length.to_bytes(8, "little") + text.ljust(length)

    def size(self, header: bytes) -> int:
        """Bytes of the whole file."""
        return len(header) + self.tokens * (self.row + 8)
