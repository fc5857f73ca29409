"""extract.settle and extract.tokenized: token ids and masks for every prompt, before anything is sent."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hsops.core.dumps import token_bytes
from hsops.core.errors import ConfigError, UsageError
from hsops.core.events import Event, Note, ignore
from hsops.core.prompt_files import read_prompts
from hsops.core.prompts import Prompt
from hsops.extract.settle import Limits, limits_of, settle
from hsops.extract.tokenized import check_places, keep
from hsops.remote.server import Server
from hsops.remote.tokenizer import Made, Tokenizer

CHAT = json.dumps({"messages": [{"role": "user", "content": "q"}]})
LIMITS = Limits("tiny", True, 10, 256)


class Answer(http.server.BaseHTTPRequestHandler):
    """``/tokenize``: the length of each text as its only token; 500 for one that says ``break``."""

    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
        body = json.dumps({"tokens": [[len(text)] for text in texts]}).encode()
        self.send_response(500 if "break" in texts else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that tokenises."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        with Server(httpd.server_address[1], host="here", concurrency=1) as found:
            yield found
        httpd.shutdown()


def own(_: Tokenizer, prompts: Sequence[Prompt]) -> list[Made]:
    """Seven and a mask; ``bad`` is refused."""
    return [
        Made(b"", error="messages[1]: why")
        if p.id == "bad"
        else Made(token_bytes([7, 7]), b"\0\1" if p.messages else b"")
        for p in prompts
    ]


def test_each_prompt_is_tokenised_where_it_can_be(server: Server) -> None:
    """Texts by the server, conversations by the model's own tokenizer, and texts too where the server has none."""
    prompts = (Prompt("ids", 1, token_bytes([5])), Prompt("text", 2, b"", "abc"), Prompt("chat", 3, b"", messages=CHAT))

    found = settle(server, prompts, LIMITS, file="p", own=own)
    bare = settle(server, prompts, Limits("tiny", False, 10, 256), file="p", own=own)
    broken = settle(server, (Prompt("text", 1, b"", "break"),), LIMITS, file="p", own=own)

    assert [(p.ids().tolist(), p.mask, p.text, p.messages) for p in found] == [
        ([5], b"", "", ""),
        ([3], b"", "", ""),
        ([7, 7], b"\0\1", "", ""),
    ]
    assert [p.ids().tolist() for p in bare] == [[5], [7, 7], [7, 7]]
    assert [p.ids().tolist() for p in broken] == [[7, 7]]


def test_every_fault_before_anything_is_sent(server: Server) -> None:
    """Conversations that are refused with their row; then lengths, masks and vocabulary of all of them."""
    refused = (Prompt("bad", 4, b"", messages=CHAT, row=True), Prompt("ids", 5, token_bytes([999]), row=True))
    with pytest.raises(ConfigError) as caught:
        settle(server, refused, LIMITS, file="ds", own=own)
    assert [str(fault) for fault in caught.value.faults] == ["ds: row 4: messages: messages[1]: why"]

    others = (
        Prompt("a", 1, token_bytes([999])),
        Prompt("b", 2, b"", "abc", mask=b"\1\1"),
        Prompt("c", 3, token_bytes([1] * 10)),
    )
    with pytest.raises(ConfigError) as caught:
        settle(server, others, LIMITS, file="p.jsonl", own=own)
    assert [str(fault)[:45] for fault in caught.value.faults] == [
        "p.jsonl:1:1: input_ids[0]: 999 is beyond the ",
        "p.jsonl:2:1: loss_mask: 2 of them for 1 token",
        "p.jsonl:3:1: 10 tokens; tiny takes fewer than",
    ]


def test_the_tokenizer_is_the_one_that_the_server_was_launched_with() -> None:
    """From its own account of its arguments."""
    info = {
        "model_path": "/m",
        "tokenizer_path": "/t",
        "tokenizer_mode": "slow",
        "trust_remote_code": True,
        "revision": None,
        "chat_template": "/c.jinja",
    }

    assert limits_of("tiny", info, {}).own == Tokenizer("/t", "slow", trust=True, revision="", template="/c.jinja")
    assert limits_of("tiny", {"model_path": "/m"}, {}).own == Tokenizer("/m")


def test_what_was_sent_is_kept_and_read_again(tmp_path: Path) -> None:
    """Token ids and masks; whole or not at all; without a file the user hears what is lost."""
    prompts = (Prompt("a", 1, token_bytes([5, 6]), mask=b"\0\1"), Prompt("b", 2, token_bytes([7])))
    told: list[Event] = []

    keep(tmp_path / "kept.jsonl", prompts, told.append, made=True)
    keep(None, prompts, told.append, made=False)
    keep(None, prompts, told.append, made=True)

    assert read_prompts(tmp_path / "kept.jsonl") == prompts
    assert [path.name for path in tmp_path.iterdir()] == ["kept.jsonl"]
    assert [isinstance(one, Note) and "--tokenized" in one.message for one in told] == [True]


def test_the_prompts_are_not_written_over(tmp_path: Path) -> None:
    """By whatever name; nor are a dataset's files, of which a split may be named."""
    prompts = tmp_path / "p.jsonl"
    prompts.touch()
    (tmp_path / "link").symlink_to(prompts)
    (tmp_path / "hard").hardlink_to(prompts)
    (tmp_path / "ds").mkdir()
    shard = tmp_path / "ds/train-00000-of-00001.parquet"
    shard.touch()

    taken = [(path, prompts) for path in (prompts, tmp_path / "link", tmp_path / "hard")]
    for path, of in [*taken, (shard, tmp_path / "ds"), (shard, tmp_path / "ds/train"), (shard, shard)]:
        for given in ((path, None), (None, path)):
            with pytest.raises(UsageError, match="is where the prompts are"):
                check_places(*given, str(of))
    new = tmp_path / "new"
    assert check_places(new, None, str(prompts)) == check_places(new, None, "-") == (new, None)
    assert check_places(None, new, str(tmp_path / "ds")) == (None, new) and not new.exists()


@pytest.mark.parametrize("name", ["x", "soft", "hard"])
def test_two_options_are_two_files(tmp_path: Path, name: str) -> None:
    """The second would take the place of the first."""
    (tmp_path / "x").touch()
    (tmp_path / "soft").symlink_to("x")
    (tmp_path / "hard").hardlink_to(tmp_path / "x")

    with pytest.raises(UsageError, match="--tokenized and --failures are one file"):
        check_places(tmp_path / name, tmp_path / "x", "-")


def test_what_is_kept_goes_through_a_link(tmp_path: Path) -> None:
    """The link stays, its file is replaced; one that leads to nothing yet is followed too."""
    (tmp_path / "there").write_text("old")
    for name in ("there", "new"):
        (tmp_path / f"to-{name}").symlink_to(name)
        path, _ = check_places(tmp_path / f"to-{name}", None, "-")
        keep(path, [Prompt("a", 1, token_bytes([5]))], ignore, made=False)

        assert (tmp_path / f"to-{name}").is_symlink()
        assert (tmp_path / name).read_text() == '{"id":"a","input_ids":[5]}\n'
    assert sorted(one.name for one in tmp_path.iterdir()) == ["new", "there", "to-new", "to-there"]
