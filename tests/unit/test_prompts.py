"""core.prompt_files: every fault of a file at once, at its line and column."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hsops.core import prompt_lines as module
from hsops.core.dumps import token_bytes
from hsops.core.errors import ConfigError
from hsops.core.json_place import column
from hsops.core.prompt_files import read_prompts
from hsops.core.prompts import Prompt


def read(tmp_path: Path, content: str | bytes) -> tuple[Prompt, ...]:
    """Write a file and read it."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_prompts(path)


def faults(tmp_path: Path, content: str | bytes) -> list[tuple[int, int, str]]:
    """(line, column, message) of every fault."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, content)
    assert caught.value.exit_code == 4
    return [(f.line, f.column, f"{f.where}: {f.message}" if f.where else f.message) for f in caught.value.faults]


def test_prompts_keep_order_lines_and_tokens(tmp_path: Path) -> None:
    """Blank lines and foreign columns are passed over; Windows line ends are no fault."""
    content = '{"id": "a", "input_ids": [1, 2], "loss_mask": [0, 1], "x": 1}\r\n\n{"text": "hi", "id": "b"}'

    assert read(tmp_path, content) == (Prompt("a", 1, token_bytes([1, 2]), mask=b"\0\1"), Prompt("b", 3, b"", "hi"))


@pytest.mark.parametrize(
    "line, column_, message",
    [
        ('{"id": "a", "input_ids": [1, 2}', 31, "not JSON: Expecting ',' delimiter"),
        ('{"id": "a", "input_ids": [1]} x', 31, "not JSON: Extra data"),
        ("[1, 2]", 1, "expected an object, got a list"),
        ('  "a"', 3, "expected an object, got 'a'"),
        ('{"input_ids": [1]}', 1, "'id' is missing"),
        ('{"ids": "a", "input_ids": [1]}', 1, "'id' is missing; did you mean 'id' by 'ids'?"),
        ('{"id": 7, "input_ids": [1]}', 8, "id: expected text, got 7"),
        (r'{"id": "a", "text": "x\ud800"}', 21, r"text: half a character in it: '\ud800'"),
        ('{"id": "../a", "input_ids": [1]}', 8, "id: '../a' is not safe"),
        ('{"id": "a\\n", "input_ids": [1]}', 8, "id: 'a\\n' is not safe"),
        ('{"id": "", "input_ids": [1]}', 8, "id: '' is not safe"),
        ('{"id": "a"}', 1, "'input_ids' is missing"),
        ('{"id": "a", "input_id": [1]}', 1, "'input_ids' is missing; did you mean 'input_ids' by 'input_id'?"),
        ('{"id": "a", "input_ids": []}', 26, "input_ids: empty"),
        ('{"id": "a", "input_ids": "1 2"}', 26, "input_ids: expected a list of token ids, got '1 2'"),
        ('{"id": "a", "input_ids": [5, -1, 3]}', 30, "input_ids[1]: expected a token id, got -1"),
        ('{"id": "a", "input_ids": [1.5]}', 27, "input_ids[0]: expected a token id, got 1.5"),
        ('{"id": "a", "input_ids": [1, true, null]}', 30, "input_ids[1]: expected a token id, got true (and 1 more"),
        ('{"id": "a", "input_ids": [1, [2]]}', 30, "input_ids[1]: expected a token id, got a list"),
        ('{"id": "a", "input_ids": [2147483648]}', 27, "input_ids[0]: expected a token id, got 2147483648"),
        ('{"id": "a", "input_ids": [NaN]}', 27, "input_ids[0]: expected a token id, got NaN"),
        ('{"id": "a", "text": "x", "input_ids": [1]}', 21, "text: besides 'input_ids'; give one of them"),
        ('{"id": "a", "text": ""}', 21, "text: expected text that is not empty, got ''"),
        ('{"id": "a", "messages": []}', 25, "messages: empty"),
        ('{"id": "a", "messages": {"role": "user"}}', 25, "messages: expected a list of messages"),
        ('{"id": "a", "messages": ["hi"]}', 26, "messages[0]: expected an object with role and content"),
        ('{"id": "a", "messages": [{"content": "x"}]}', 26, "messages[0].role: expected a role such as user"),
        ('{"id": "a", "messages": [{"role": "user", "content": 7}]}', 54, "messages[0].content: expected text"),
        ('{"id": "a", "messages": [{"role": "user"}]}', 26, "messages[0].content: expected text"),
        (
            '{"id": "a", "conversations": [{"from": "bot", "value": "x"}]}',
            40,
            "conversations[0].from: expected one of h",
        ),
        ('{"id": "a", "conversations": [{"from": "gpt", "value": 1}]}', 56, "conversations[0].value: expected text"),
        (
            '{"id": "a", "messages": [{"role": "u", "content": "x"}], "tools": {}}',
            67,
            "tools: expected a list of objects",
        ),
        (
            r'{"id": "a", "messages": [{"role": "u", "content": "\udfff"}]}',
            25,
            r"messages: half a character in it: '\udfff'",
        ),
        (
            '{"id": "a", "messages": [{"role": "u", "content": "x"}], "loss_mask": [1]}',
            71,
            "loss_mask: the chat template",
        ),
        (
            '{"id": "a", "messages": [{"role": "u", "content": "x"}], "text": "x"}',
            66,
            "text: besides 'messages'; give one",
        ),
        ('{"id": "a", "id": "b", "input_ids": [1]}', 19, "id: given twice on this line"),
    ],
)
def test_a_fault_has_its_place(tmp_path: Path, line: str, column_: int, message: str) -> None:
    """What was wrong, with the value, at the character where it stands."""
    good = '{"id": "good", "input_ids": [1]}\n'

    ((number, found, text),) = faults(tmp_path, good + line + "\n")

    assert (number, found) == (2, column_)
    assert text.startswith(message)


def test_every_fault_at_once_in_order(tmp_path: Path) -> None:
    """Two faults on one line are two faults; a double id names both lines."""
    content = '{"id": "a", "input_ids": [1]}\n{"id": "/", "input_ids": []}\n{\n{"id": "a", "input_ids": [2]}\n'

    found = faults(tmp_path, content)

    assert [(line, col) for line, col, _ in found] == [(2, 8), (2, 26), (3, 2), (4, 8)]
    assert found[3][2] == "id: 'a' is given twice; first at line 1"


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    """The column counts characters before the bad byte."""
    assert faults(tmp_path, '{"id": "é'.encode() + b"\xff") == [(1, 10, "not UTF-8: byte 0xff")]


def test_a_line_without_end_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A binary file given by mistake gives one fault, and the lines after it are still read."""
    monkeypatch.setattr(module, "LONGEST_LINE", 1 << 20)
    good = b'{"id": "good", "input_ids": [1]}\n'

    ((line, _, message),) = faults(tmp_path, good + b"x" * (5 << 20) + b"\n" + good.replace(b"good", b"other"))

    assert (line, message) == (2, "the line is longer than 1 MiB")


def test_conversations_become_what_a_template_takes(tmp_path: Path) -> None:
    """OpenAI's form is left as it is, but for empty keys; ShareGPT's speakers become roles."""
    turns = [{"role": "user", "content": "hé", "name": None}, {"role": "assistant", "tool_calls": [{"x": None}]}]
    said = [{"from": "system", "value": "s"}, {"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]
    lines = [{"id": "a", "messages": turns, "tools": [{"name": "t"}]}, {"id": "b", "conversations": said}]

    openai, sharegpt = read(tmp_path, "".join(json.dumps(line) + "\n" for line in lines))

    assert json.loads(openai.messages) == {
        "messages": [{"role": "user", "content": "hé"}, {"role": "assistant", "tool_calls": [{"x": None}]}],
        "tools": [{"name": "t"}],
    }
    assert [(m["role"], m["content"]) for m in json.loads(sharegpt.messages)["messages"]] == [
        ("system", "s"),
        ("user", "u"),
        ("assistant", "a"),
    ]
    assert (openai.tokens, openai.text, openai.mask) == (b"", "", b"")


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_prompts(tmp_path: Path, content: str) -> None:
    """Nothing to do is a fault, not a success."""
    assert faults(tmp_path, content) == [(0, 0, "no prompts in it")]


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    """Both are said without a traceback."""
    for path, message in ((tmp_path / "none", "no such file"), (tmp_path, "a folder without state.json")):
        with pytest.raises(ConfigError, match=message):
            read_prompts(path)


def test_a_file_that_is_wrong_throughout_is_cut_short(tmp_path: Path) -> None:
    """A hundred faults and a count."""
    found = faults(tmp_path, "{\n" * 250)

    assert len(found) == 101
    assert found[-1] == (0, 0, "and 150 more faults")


def test_deep_and_long_numbers_are_faults_not_crashes(tmp_path: Path) -> None:
    """The parser's own limits reach the user as faults."""
    content = '{"id": "a", "input_ids": ' + "[" * 100_000 + '\n{"id": "b", "input_ids": [' + "9" * 5000 + "]}\n"

    assert [line for line, _, _ in faults(tmp_path, content)] == [1, 2]


def test_column_finds_keys_and_elements() -> None:
    """Over strings with escapes, nested values and spaces; the last of equal keys."""
    text = ' { "a\\"" : [1, {"b": [ ]} , "x,]"], "k":1,"k" :\t2 }'
    assert json.loads(text) == {'a"': [1, {"b": []}, "x,]"], "k": 2}

    assert text[column(text, 'a"') - 1 :].startswith("[1")
    assert text[column(text, 'a"', 1, "b") - 1 :].startswith("[ ]")
    assert text[column(text, 'a"', 2) - 1 :].startswith('"x,]"')
    assert text[column(text, "k") - 1 :].startswith("2")
    assert column(text, "none") == 2
    assert column(text, "k", 3) == column(text, "k")
