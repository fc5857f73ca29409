"""From a batch as SGLang makes it to the tickets of its requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hsops.payload.hsops_hs_dump.requests import ON_BATCH, Requests
from hsops.payload.hsops_hs_dump.rows import EMBEDDED, place


def following() -> tuple[Requests, Any]:
    """The table, and a batch class that it follows: what ``init_new`` makes knows the ids alone."""

    class Batch(SimpleNamespace):
        @classmethod
        def init_new(cls, batch: Any) -> Any:
            return cls(rids=[request.rid for request in batch.reqs])

    requests = Requests()
    requests.follow(Batch)
    return requests, Batch


def asked(rid: str, tokens: int, **more: Any) -> Any:
    return SimpleNamespace(rid=rid, origin_input_ids=[1] * tokens, **more)


def test_only_our_requests_have_tickets_and_keep_them() -> None:
    """One entry a request; the same ticket in the next pass, also where only the ids are left of the batch."""
    requests, batch_class = following()
    ours, other = asked("hs-a", 3), asked("x", 2)

    first = batch_class.init_new(SimpleNamespace(reqs=[other, ours]))
    again = batch_class.init_new(SimpleNamespace(reqs=[ours]))
    tickets, later = requests.of(first), requests.of(again)
    delattr(again, ON_BATCH)

    assert tickets is not None and tickets[0] is None and tickets[1] is not None
    assert (tickets[1].id, tickets[1].total) == ("a", 3)
    assert later == [tickets[1]] == requests.of(again)
    assert requests.of(batch_class.init_new(SimpleNamespace(reqs=[other]))) is None


@pytest.mark.parametrize("name", ["input_embeds", "positional_embed_overrides"])
def test_a_prompt_of_embeddings_fails(name: str) -> None:
    """SGLang makes up its token ids: a drafter would learn them."""
    requests, batch_class = following()
    made = batch_class.init_new(SimpleNamespace(reqs=[asked("hs-a", 3, **{name: [[0.5]]}), asked("hs-b", 2)]))

    tickets = requests.of(made)
    assert tickets is not None
    pieces, failures = place(tickets, [3, 2], [0, 0])

    assert [(failure.ticket, failure.reason) for failure in failures] == [(tickets[0], EMBEDDED)]
    assert [(piece.ticket, piece.row, piece.last) for piece in pieces] == [(tickets[1], 3, True)]
    assert place(tickets, [3, 2], [3, 2]) == ([], [])
