"""What is sent to the server, word for word, and what is kept of its answers."""

from __future__ import annotations

from typing import Any

import pytest

from hsops.core.events import ignore
from hsops.remote.server import RejectedError
from hsops.verify.live.drive import ask_again, drive
from hsops.verify.live.evidence import Taken
from hsops.verify.live.head import Answer
from hsops.verify.live.plan import ALONE, BATCH, SCORED, Call, Plan
from tests.samples import SAMPLE

PLAN = Plan(4, (Call(ALONE), Call(SCORED, scored=True), Call(BATCH, before=(2, 3), after=(5,))), {}, 256)


class Server:
    """Answers everything, or refuses to tell log-probabilities."""

    host = "lab"

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.asked: list[dict[str, Any]] = []

    def ask(self, body: dict[str, Any], _tokens: int) -> Any:
        self.asked.append(body)
        if self.refuses and body.get("return_logprob"):
            raise RejectedError("HTTP 400: no", host=self.host)
        prompts = body["input_ids"]
        return [answer(ids) for ids in prompts] if isinstance(prompts[0], list) else answer(prompts)


def answer(ids: list[int]) -> dict[str, Any]:
    """Each token as probable as its id says, so that answers of two prompts are told apart."""
    tokens = [[None, ids[0], None], *([-float(i), i, None] for i in ids[1:])]
    return {"meta_info": {"input_token_logprobs": tokens, "input_top_logprobs": [None, *([[[-0.5, 7, None]]] * 3)]}}


def refuse(_body: dict[str, Any], _tokens: int) -> Any:
    """Whatever it is."""
    raise RejectedError("HTTP 400: no", host="lab")


class Folder:
    """Has a line of everything that was asked for, of a pass as large as meant."""

    token, under_way = "t", ()

    def sample(self, name: str) -> str:
        return f"t.{name}"

    def wait(self, names: list[str], **_: Any) -> dict[str, tuple[Taken, ...]]:
        return {name: (Taken(SAMPLE, (4,) if name.startswith("alone") else (500,)),) for name in names}


def test_the_same_company_is_sent_again_with_log_probabilities_of_p_alone() -> None:
    """A batch's own would be gigabytes; others and P are token for token the ones of the first time."""
    server = Server()
    seen = drive(server, Folder(), PLAN, ignore, steps=5)  # type: ignore[arg-type]
    ask_again(server, Folder(), BATCH, PLAN, seen)  # type: ignore[arg-type]

    first, again = server.asked[2:]
    assert first["input_ids"] == again["input_ids"]
    assert "return_logprob" not in first
    assert again["return_logprob"] == [False, False, True, False]
    assert again["logprob_start_len"] == [-1, -1, 0, -1]
    assert again["top_logprobs_num"] == [0, 0, 1, 0]
    assert again["rid"][2] == "hscheck-t.batch-scored-1"
    p = again["input_ids"][2]
    assert seen.answers == {
        name: Answer(tuple(-float(i) for i in p[1:]), (7,) * 3) for name in (SCORED, "batch-scored")
    }
    assert seen.names == {ALONE: "alone-1", SCORED: "scored-1", BATCH: "batch-1", "batch-scored": "batch-scored-1"}


def test_one_prompt_is_asked_for_plainly() -> None:
    """No lists: P sent alone."""
    server = Server()
    drive(server, Folder(), PLAN, ignore, steps=5)  # type: ignore[arg-type]

    scored = server.asked[1]
    assert (scored["return_logprob"], scored["logprob_start_len"], scored["top_logprobs_num"]) == (True, 0, 1)


def test_a_server_that_refuses_log_probabilities_is_checked_all_the_same() -> None:
    """Its words are the reason that nothing is known; what it refuses without them is an error."""
    server = Server(refuses=True)

    seen = drive(server, Folder(), PLAN, ignore, steps=5)  # type: ignore[arg-type]

    assert seen.answers == {SCORED: "the server refuses to tell log-probabilities: HTTP 400: no"}
    assert seen.names == {ALONE: "alone-1", BATCH: "batch-1"}
    server.ask = refuse  # type: ignore[method-assign]
    with pytest.raises(RejectedError):
        drive(server, Folder(), PLAN, ignore, steps=5)  # type: ignore[arg-type]
