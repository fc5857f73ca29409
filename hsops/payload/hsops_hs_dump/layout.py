"""The bytes of a dump: a safetensors file whose rows can be written as they come.

Header, ``hidden_states [T, K(+1), H]``, ``token_ids [T] int64``. The header is padded to whole pages: rows start on a
page, and T is known before the first row, so that the header comes first and every row has its place.
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
        metadata: text to text, kept in the file.
    """

    dtype: str
    item: int
    tokens: int
    slots: int
    hidden: int
    metadata: dict[str, str]

    @property
    def row(self) -> int:
        """Bytes of one row: all its states."""
        return self.slots * self.hidden * self.item

    def header(self) -> bytes:
        """The file's beginning, padded."""
        states, ids = self.tokens * self.row, self.tokens * 8
        shape = [self.tokens, self.slots, self.hidden]
        tensors = {
            "__metadata__": self.metadata,
            "hidden_states": {"dtype": self.dtype, "shape": shape, "data_offsets": [0, states]},
            "token_ids": {"dtype": "I64", "shape": [self.tokens], "data_offsets": [states, states + ids]},
        }
        text = json.dumps(tensors, separators=(",", ":")).encode()
        length = -(-(len(text) + 8) // PAGE) * PAGE - 8
        return length.to_bytes(8, "little") + text.ljust(length)

    def size(self, header: bytes) -> int:
        """Bytes of the whole file."""
        return len(header) + self.tokens * (self.row + 8)
