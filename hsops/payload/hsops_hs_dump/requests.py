"""From a forward batch to its requests: which to capture, and how long each prompt is.

``ForwardBatch`` does not know a prompt's length, and before 0.5.10 not even the request ids. ``init_new`` sees the
requests themselves in every version since 0.5.6, so it is wrapped; up to 0.5.5 they are put on what it sees when the
scheduler makes that. What is put on the batch there is lost on the eager path from 0.5.13 on
(``dataclasses.replace``); ``rids`` survives, hence the table.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import Any

from .hello import say
from .rows import EMBEDDED, Ticket, is_wanted, ticket_for

MARK = "_hsops_ticket"
ON_BATCH = "_hsops_tickets"
ON_WORKER_BATCH = "_hsops_requests"
REMEMBERED = 16384
# a request has one of these instead of, or over, its token ids; the second from 0.5.11 on
EMBEDDINGS = ("input_embeds", "positional_embed_overrides")


class Requests:
    """The tickets of this process's requests."""

    def __init__(self) -> None:
        self._by_rid: OrderedDict[str, Ticket] = OrderedDict()
        self._refused: set[str] = set()

    def follow(self, batch_class: Any) -> None:
        """Wrap ``ForwardBatch.init_new``."""
        original = batch_class.__dict__["init_new"].__func__

        @functools.wraps(original)
        def init_new(cls: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(cls, batch, *args, **kwargs)
            try:
                self._note(batch, made)
            except Exception as error:  # noqa: BLE001 - the batch must go on
                say(f"init_new: {type(error).__name__}: {error}")
            return made

        batch_class.init_new = classmethod(init_new)

    def follow_scheduler(self, batches: Any) -> None:
        """Wrap ``ScheduleBatch.get_model_worker_batch`` where what it makes does not hold the requests (to 0.5.5).

        Args:
            batches: SGLang's module ``schedule_batch``.
        """
        made_class = getattr(batches, "ModelWorkerBatch", None)
        if made_class is None or "reqs" in getattr(made_class, "__dataclass_fields__", {}):
            return
        original = batches.ScheduleBatch.get_model_worker_batch

        @functools.wraps(original)
        def get_model_worker_batch(batch: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(batch, *args, **kwargs)
            try:
                setattr(made, ON_WORKER_BATCH, list(batch.reqs))
            except Exception as error:  # noqa: BLE001 - the batch must go on
                say(f"get_model_worker_batch: {type(error).__name__}: {error}")
            return made

        batches.ScheduleBatch.get_model_worker_batch = get_model_worker_batch

    def of(self, forward_batch: Any) -> list[Ticket | None] | None:
        """One entry a request, in the batch's order; None when none of them is to be captured."""
        tickets = getattr(forward_batch, ON_BATCH, None)
        if tickets is None:
            tickets = [self._by_rid.get(rid) for rid in getattr(forward_batch, "rids", None) or ()]
        return tickets if any(tickets) else None

    def _note(self, batch: Any, made: Any) -> None:
        held = getattr(batch, "reqs", None) or getattr(batch, ON_WORKER_BATCH, None)
        tickets = [self._ticket(request) for request in held or ()]
        if any(tickets):
            setattr(made, ON_BATCH, tickets)

    def _ticket(self, request: Any) -> Ticket | None:
        if not is_wanted(request.rid):
            return None
        ticket: Ticket | None = getattr(request, MARK, None)
        if ticket is None:
            ticket = ticket_for(request.rid, len(request.origin_input_ids))
            if ticket is None:
                self._refuse(request.rid)
                return None
            if any(getattr(request, name, None) is not None for name in EMBEDDINGS):
                ticket.unfit = EMBEDDED
            setattr(request, MARK, ticket)  # a retracted request keeps it, a new request of the same id gets its own
            self._by_rid[request.rid] = ticket
            self._by_rid.move_to_end(request.rid)
            while len(self._by_rid) > REMEMBERED:
                self._by_rid.popitem(last=False)
        return ticket

    def _refuse(self, rid: str) -> None:
        if rid not in self._refused and len(self._refused) < REMEMBERED:
            self._refused.add(rid)
            say(f"request id {rid[:200]!r} is no safe file name: not captured")
