"""Run by the trainers' Python: what the ``datasets`` library itself leaves on disk, for hsops to read.

Its argument is a folder; it makes ``saved`` (three shards, rows picked before), ``dict`` (two splits), ``hub``
(parquet) and ``rows.json``, which has the rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, DatasetDict

COUNT = 250

to = Path(sys.argv[1])
turns = [[{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}] for i in range(COUNT)]
ids = [[i, i + 1, i + 2][: 1 + i % 3] for i in range(COUNT)]
table = pa.table({"id": [f"s{i}" for i in range(COUNT)], "input_ids": ids, "messages": turns})
made = Dataset(table, fingerprint="made")  # to make one of its own it would pickle what this pyarrow does not let it
picked = made.select(range(COUNT - 1, -1, -2))
picked.save_to_disk(str(to / "saved"), num_shards=3)
chats = picked.remove_columns("input_ids")
DatasetDict({"train": chats, "test": chats.select(range(5))}).save_to_disk(str(to / "dict"))
for split, rows in (("train", made), ("test", made.select([7]))):
    rows.to_parquet(str(to / f"hub/data/{split}-00000-of-00001.parquet"))
(to / "rows.json").write_text(json.dumps(list(picked)))
