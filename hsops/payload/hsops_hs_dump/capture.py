"""One forward pass with capture: admit, tap, hand over. Nothing in here raises into the model's forward.

What decides whether a pass is tapped is equal on every rank (the deployed configuration, SGLang's code and arguments,
the batch), because the native capture may take part in collectives. What only one rank knows, such as a full disk,
decides only what becomes of the rows afterwards: ``Ticket.over`` is the former, ``Ticket.lost`` the latter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from . import contract, taps
from .about import about
from .claim import TakenError
from .hello import Hello, say
from .jobs import Staged
from .process import Process
from .requests import Requests
from .rows import Failure, Piece, Ticket, place
from .settings import Settings
from .writers import Writers

MOST_OPEN = 256  # unfinished samples; SGLang has one chunked request at a time, so more were aborted by their clients


class Gathering(Staged, Protocol):
    """A pass's states while they come by, and then for the writer. Nothing of it raises while the model runs."""

    problem: str

    def take(self, slot: int, value: object) -> None:
        """Copy one state."""
        ...

    def seal(self, token_ids: Any) -> None:
        """The pass is over: check that nothing is missing."""
        ...


@dataclass(frozen=True)
class Admitted:
    """A pass that is captured."""

    rows: int
    pieces: Sequence[Piece]


class Capture:
    """The capture of this process.

    Args:
        settings: what was deployed.
        hello: what this rank tells about itself; its ``strategy`` is the one at work.
        requests: tells which requests are ours.
        new_stage: (rows, slots, last=, keep=) -> what gathers a pass's states (``stage.Stage``).
        ask: tells what this process is (``process.this_process``).
        prepare: (model, ring slots): takes what memory the copies need (``stage.prepare``).
    """

    def __init__(
        self,
        settings: Settings,
        hello: Hello,
        requests: Requests,
        *,
        new_stage: Callable[..., Gathering],
        ask: Callable[[], Process],
        prepare: Callable[[Any, int], None] = lambda _model, _slots: None,
    ) -> None:
        self._settings, self._hello, self._requests = settings, hello, requests
        self._new_stage, self._ask, self._prepare = new_stage, ask, prepare
        self._writers: Writers | None = None
        self._attached: Any = None
        self._header: dict[str, str] = {}
        self._active = False
        self._open: OrderedDict[tuple[bool, str], Ticket] = OrderedDict()

    def attach(self, model: Any) -> None:
        """When the model is built: check what can only be known now, and say hello."""
        if self._attached is model:
            return
        self._attached = model
        self._hello.reasons.clear()
        try:
            process = self._ask()
            self._hello.rank, self._hello.facts["tp_size"] = process.rank, process.tp_size
            self._header = about(model, str(self._hello.facts.get("model", "")), process, self._settings.boundaries)
            self._hello.facts |= contract.facts(process.arguments, self._hello.strategy)
            self._hello.reasons += contract.problems(process.arguments, self._hello.strategy) + self._objections(model)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a reason not to capture
            self._hello.reasons.append(f"{type(error).__name__}: {error}")
        self._active = not self._hello.reasons
        if self._active:
            self._open_writers(model)
        self._hello.write()

    def forward(self, original: Callable[..., Any], model: Any, batch: Any, args: Any, kwargs: Any) -> Any:
        """The model's forward, with capture when the batch holds requests of ours."""
        admitted = self._admit(model, batch)
        if admitted is None:
            return original(model, *args, **kwargs)
        stage = self._new_stage(
            admitted.rows, self._settings.slots, last=self._settings.last, keep=self._keeps(admitted)
        )
        with ExitStack() as stack:
            untangle = self._tap(stack, model, stage)
            returned = untangle(original(model, *args, **kwargs))
        self._hand_over(batch, admitted, stage)
        return returned

    def _keeps(self, admitted: Admitted) -> bool:
        return self._writers is not None and self._writers.keeps(admitted.pieces)

    def _tap(self, stack: ExitStack, model: Any, stage: Gathering) -> taps.Untangle:
        settings = self._settings
        try:
            untangle = stack.enter_context(taps.TAPS[self._hello.strategy](model, settings.boundaries, stage.take))
            before = settings.slots - 1 if settings.slots > len(settings.boundaries) else None
            after = settings.slots if settings.last else None
            stack.enter_context(taps.final_states(model, before, after, stage.take))
        except Exception as error:  # noqa: BLE001 - the pass runs untapped; only its samples are lost
            stack.close()
            stage.problem = f"{type(error).__name__}: {error}"
            return lambda returned: returned
        return untangle

    def _objections(self, model: Any) -> list[str]:
        layers = len(model.layers)
        beyond = [str(k) for k in self._settings.boundaries if not 0 <= k < layers]
        if not beyond:
            return []
        return [f"boundaries {', '.join(beyond)}: this model has 0 to {layers - 1} (its last state is 'final')"]

    def _open_writers(self, model: Any) -> None:
        if self._writers is not None:
            return
        facts = {"sglang": self._hello.sglang, "strategy": self._hello.strategy, "header": self._header}
        rank = self._hello.rank or 0
        writers = Writers(self._settings, facts, rank, lambda slots: self._prepare(model, slots))
        try:
            writers.open()
            self._writers = writers
        except TakenError as error:
            self._hello.reasons.append(str(error))
        except OSError as error:
            self._hello.reasons.append(f"the dump folder cannot be written: {error}")
        except Exception as error:  # noqa: BLE001 - no pinned memory, no threads: whatever it is, nothing can be kept
            self._hello.reasons.append(f"the writer cannot begin: {type(error).__name__}: {error}")

    def _admit(self, model: Any, batch: Any) -> Admitted | None:
        try:
            tickets = self._requests.of(batch)
            if tickets is None:
                return None
            self.attach(model)
            return self._judge(batch, tickets) if self._active else None
        except Exception as error:  # noqa: BLE001 - the server goes on
            say(f"admit: {type(error).__name__}: {error}")
            return None

    def _judge(self, batch: Any, tickets: list[Ticket | None]) -> Admitted | None:
        mode = getattr(batch.forward_mode, "name", "")
        if mode in ("DECODE", "IDLE"):
            return None
        if mode != "EXTEND" or getattr(batch, "_original_forward_mode", None) is not None:
            self._fail_all(tickets, f"a forward pass of mode {mode or batch.forward_mode} is not captured")
            return None
        lengths, starts = batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu
        if not isinstance(lengths, list) or len(lengths) != len(tickets):
            self._fail_all(tickets, "the batch does not tell which rows are whose")
            return None
        for ticket in tickets:
            if ticket is not None and not ticket.over:
                self._supersede(ticket)
        pieces, failures = place(tickets, [int(n) for n in lengths], [int(n) for n in starts])
        for failure in failures:
            self._fail(failure)
        rows = sum(int(n) for n in lengths)
        for piece in pieces:
            piece.ticket.passes.append(rows)
            if piece.last:
                self._forget(piece.ticket)
        self._bound()
        return Admitted(rows, pieces) if pieces else None

    def _supersede(self, ticket: Ticket) -> None:
        """A second request for an id (the client gave up on the first) replaces the one that is not whole yet."""
        older = self._open.get(ticket.key)
        if older is not None and older is not ticket:
            older.over = True
            if self._writers:
                self._writers.drop(older)
        self._open[ticket.key] = ticket
        self._open.move_to_end(ticket.key)

    def _bound(self) -> None:
        """Requests that their clients aborted half-way must not be waited for for ever."""
        while len(self._open) > MOST_OPEN:
            oldest = next(iter(self._open.values()))
            self._fail(Failure(oldest, f"{MOST_OPEN} other samples were begun or went on since its last rows came"))

    def _forget(self, ticket: Ticket) -> None:
        if self._open.get(ticket.key) is ticket:
            del self._open[ticket.key]

    def _hand_over(self, batch: Any, admitted: Admitted, stage: Gathering) -> None:
        try:
            stage.seal(batch.input_ids)
            problem = stage.problem
            if not problem and self._writers:
                self._writers.submit(stage, admitted.pieces)
        except Exception as error:  # noqa: BLE001 - the model has its result; only these samples are lost
            problem = f"{type(error).__name__}: {error}"
        if problem and self._writers:
            self._writers.fail_all(admitted.pieces, problem)

    def _fail_all(self, tickets: Sequence[Ticket | None], reason: str) -> None:
        for ticket in tickets:
            if ticket is not None and not ticket.over:
                self._fail(Failure(ticket, reason))

    def _fail(self, failure: Failure) -> None:
        failure.ticket.over = True
        self._forget(failure.ticket)
        if self._writers:
            self._writers.fail(failure)
