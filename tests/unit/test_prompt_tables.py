"""core.prompt_tables: datasets on disk, as ``datasets`` and the Hub lay them out; what is not whole is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hsops.core.dumps import token_bytes
from hsops.core.errors import ConfigError
from hsops.core.events import Note
from hsops.core.prompt_files import read_prompts
from hsops.core.prompts import Prompt

IDS = [[i, i + 1, i + 2] for i in range(300)]
TABLE = pa.table({"id": [f"p-{i}" for i in range(300)], "input_ids": pa.array(IDS, pa.list_(pa.int32()))})


def saved(folder: Path, *shards: pa.Table, **state: Any) -> Path:
    """A folder as ``Dataset.save_to_disk`` leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{i:05d}-of-{len(shards):05d}.arrow" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, shard.schema) as stream:
            stream.write_table(shard, max_chunksize=100)
    listed = [{"filename": name} for name in names]
    (folder / "state.json").write_text(json.dumps({"_data_files": listed, "_split": "train", **state}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def parquet(path: Path, table: pa.Table) -> None:
    """One parquet file, folders made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def fault(path: Path) -> str:
    """The one fault."""
    with pytest.raises(ConfigError) as caught:
        read_prompts(path)
    (found,) = caught.value.faults
    return f"{found} | {caught.value.fix}"


def expected(first: int = 0, last: int = 300) -> tuple[Prompt, ...]:
    """The prompts of these rows of ``TABLE``."""
    return tuple(Prompt(f"p-{i}", i - first, token_bytes(IDS[i]), row=True) for i in range(first, last))


def test_a_saved_dataset(tmp_path: Path) -> None:
    """All shards in the order that its state names, rows counted through."""
    folder = saved(tmp_path / "ds", TABLE.slice(0, 130), TABLE.slice(130))

    assert read_prompts(folder) == expected()
    assert read_prompts(folder / "data-00000-of-00002.arrow") == expected(0, 130)


@pytest.mark.parametrize("width", [pa.int8(), pa.uint16(), pa.int64()])
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, lambda item: pa.list_(item, 3)])
def test_token_ids_of_every_width(tmp_path: Path, width: pa.DataType, kind: Any) -> None:
    """As datasets stores lists, long lists and lists of one length."""
    ids = [[1, 2, 3], [4, 5, 127], [0, 0, 9]]
    parquet(tmp_path / "p.parquet", pa.table({"input_ids": pa.array(ids, kind(width)), "loss_mask": [[0, 1, 1]] * 3}))

    found = read_prompts(tmp_path / "p.parquet")

    assert [prompt.ids().tolist() for prompt in found] == ids
    assert {prompt.mask for prompt in found} == {b"\0\1\1"}


def test_ids_are_made_and_said(tmp_path: Path) -> None:
    """Of the row's number, the same whatever the dataset's length; numbers become text."""
    parquet(tmp_path / "p.parquet", TABLE.drop_columns("id"))
    parquet(tmp_path / "q.parquet", TABLE.set_column(0, "id", [list(range(300))]))
    notes: list[Any] = []

    made, numbered = read_prompts(tmp_path / "p.parquet", notes.append), read_prompts(tmp_path / "q.parquet")

    assert (made[0].id, made[299].id, numbered[299].id) == ("row-00000000", "row-00000299", "299")
    assert [isinstance(note, Note) and "ids are made" in note.message for note in notes] == [True]


def test_messages_of_both_forms(tmp_path: Path) -> None:
    """A list of objects, with empty keys for those that some rows have; and an object of lists."""
    turns = [[{"role": "user", "content": "hi", "name": None}], [{"role": "user", "content": "x", "name": "n"}]]
    parquet(tmp_path / "p.parquet", pa.table({"id": ["a", "b"], "messages": turns, "text": ["t", None]}))
    columns = [{"from": ["human", "gpt"], "value": ["u", "v"]}]
    parquet(tmp_path / "q.parquet", pa.table({"id": ["a"], "conversations": columns, "loss_mask": [None]}))
    notes: list[Any] = []

    listed, columnar = read_prompts(tmp_path / "p.parquet", notes.append), read_prompts(tmp_path / "q.parquet")

    assert json.loads(listed[0].messages) == {"messages": [{"role": "user", "content": "hi"}]}
    assert json.loads(listed[1].messages)["messages"] == turns[1]
    assert [m["role"] for m in json.loads(columnar[0].messages)["messages"]] == ["user", "assistant"]
    assert ["of the columns messages, text the first is sent" in note.message for note in notes] == [True]


def test_keys_of_other_rows_are_in_no_prompt(tmp_path: Path) -> None:
    """Arrow fills them in at every depth; a template would show them to the model. In JSONL a null is meant."""

    words = [{"type": "text", "text": "w"}]

    def rows(*arguments: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "id": f"p{i}",
                "messages": [
                    {"role": "user", "content": words},
                    {
                        "role": "assistant",
                        "content": words,
                        "tool_calls": [{"function": {"name": "f", "arguments": one}}],
                    },
                ],
                "tools": [{"function": {"name": "f", "parameters": {"properties": one, "required": list(one)}}}],
            }
            for i, one in enumerate(arguments)
        ]

    given = rows({"city": "Rome"}, {"date": "x", "place": {"lat": 1}}, {"place": {"lon": 2}})
    parquet(tmp_path / "p.parquet", pa.Table.from_pylist(given))
    meant = rows({"city": "Rome", "date": None})
    (tmp_path / "p.jsonl").write_text(json.dumps(meant[0]) + "\n")

    read = read_prompts(saved(tmp_path / "ds", pa.Table.from_pylist(given)))

    assert [{"id": one.id, **json.loads(one.messages)} for one in read] == given
    assert read_prompts(tmp_path / "p.parquet") == read
    (line,) = read_prompts(tmp_path / "p.jsonl")
    assert {"id": line.id, **json.loads(line.messages)} == meant[0]


def test_every_fault_with_its_row(tmp_path: Path) -> None:
    """All at once, as of a file; the row's number is the dataset's."""
    table = pa.table({"id": ["a", "a", "../x", "d", "e"], "input_ids": [[1], [2], [3], None, [-1]]})
    with pytest.raises(ConfigError) as caught:
        read_prompts(saved(tmp_path / "ds", table.slice(0, 1), table.slice(1)))

    told = [(fault.line, fault.where, fault.message[:23]) for fault in caught.value.faults]

    assert told == [
        (0, "row 1: id", "'a' is given twice; fir"),
        (0, "row 2: id", "'../x' is not safe: let"),
        (0, "row 3", "'input_ids' is missing"),
        (0, "row 4: input_ids[0]", "expected a token id, go"),
    ]


def test_splits_are_asked_for(tmp_path: Path) -> None:
    """Of a DatasetDict and of the Hub's folders: which there are, and what to type."""
    saved(tmp_path / "dict/train", TABLE)
    saved(tmp_path / "dict/test", TABLE.slice(0, 3))
    (tmp_path / "dict/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for number in range(2):
        parquet(tmp_path / f"hub/data/train-{number:05d}-of-00002.parquet", TABLE.slice(150 * number, 150))
    parquet(tmp_path / "hub/data/test-00000-of-00001.parquet", TABLE.slice(0, 3))
    parquet(tmp_path / "hub/.cache/x.parquet", TABLE)

    assert "several splits: train, test | name the one that is meant: " in fault(tmp_path / "dict")
    assert f"several splits: data/test, data/train | name the one that is meant: {tmp_path}/hub/data/test" in fault(
        tmp_path / "hub"
    )
    assert read_prompts(tmp_path / "dict/train") == read_prompts(tmp_path / "hub/data/train") == expected()
    assert read_prompts(tmp_path / "hub/data/test") == expected(0, 3)
    assert "no such file" in fault(tmp_path / "hub/data/valid")


def test_one_split_needs_no_name(tmp_path: Path) -> None:
    """The Hub's converted layout names files by numbers and folders by splits."""
    parquet(tmp_path / "ds/default/train/0000.parquet", TABLE.slice(0, 100))
    parquet(tmp_path / "ds/default/train/0001.parquet", TABLE.slice(100))

    assert read_prompts(tmp_path / "ds") == read_prompts(tmp_path / "ds/default/train") == expected()


def test_what_is_not_whole_is_refused(tmp_path: Path) -> None:
    """A lost shard, a cut one, indices beside the rows, a state that leads elsewhere."""
    two = saved(tmp_path / "two", TABLE.slice(0, 200), TABLE.slice(200))
    last = two / "data-00001-of-00002.arrow"
    whole = last.read_bytes()
    for cut in (len(whole) - 8, len(whole) // 2, 3):
        last.write_bytes(whole[:cut])
        assert f"{last}: after row 199: damaged" in fault(two)
    last.unlink()
    assert "names 2 files, 1 are not there: data-00001-of-00002.arrow" in fault(two)
    assert "a file of indices" in fault(saved(tmp_path / "old", TABLE, _indices_data_files=[{"filename": "i.arrow"}]))
    out = saved(tmp_path / "out", TABLE, _data_files=[{"filename": "../two/data-00000-of-00002.arrow"}])
    assert "name no files of this folder" in fault(out)
    parquet(tmp_path / "hub/train-00001-of-00003.parquet", TABLE)
    assert "1 parquet files; by their names there are 3" in fault(tmp_path / "hub")
    (tmp_path / "hub/train-00001-of-00003.parquet").write_bytes(b"PAR1 and nothing more")
    assert "damaged" in fault(tmp_path / "hub/train-00001-of-00003.parquet")


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_flipped_byte_is_a_fault_or_a_value(tmp_path: Path, kind: str) -> None:
    """Anywhere in a file: never a crash, whose exit no fault could explain."""
    if kind == "arrow":
        saved(tmp_path / "ds", TABLE.slice(0, 20))
    else:
        parquet(tmp_path / "ds/p.parquet", TABLE.slice(0, 20))
    (file,) = (tmp_path / "ds").glob(f"*.{kind}")
    whole = file.read_bytes()
    code = """
import sys
from pathlib import Path
from hsops.core.errors import HsopsError
from hsops.core.prompt_files import read_prompts
file, whole = Path(sys.argv[1]), Path(sys.argv[1]).read_bytes()
for at in range(0, len(whole), 3):
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
    try:
        read_prompts(file.parent)
    except HsopsError:
        pass
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, timeout=120, check=False)

    assert (done.returncode, done.stdout) == (0, b"done\n"), done.stderr[-2000:]
    assert len(whole) > 1_000


def test_columns_that_are_none_of_ours(tmp_path: Path) -> None:
    """Named, so that one can be renamed."""
    parquet(tmp_path / "p.parquet", pa.table({"prompt": ["x"]}))

    assert "no column 'input_ids', 'messages', 'conversations', 'text'; its columns are 'prompt'" in fault(
        tmp_path / "p.parquet"
    )


def test_without_pyarrow_the_extra_is_named(tmp_path: Path) -> None:
    """No traceback, and what to type."""
    saved(tmp_path / "ds", TABLE)
    code = """
import sys
sys.modules["pyarrow"] = None
from hsops.core.errors import HsopsError
from hsops.core.prompt_files import read_prompts
try:
    read_prompts(sys.argv[1])
except HsopsError as error:
    print(error.fix)
"""
    argv = [sys.executable, "-c", code, str(tmp_path / "ds")]

    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)

    assert "pip install 'hsops[datasets]'" in done.stdout
