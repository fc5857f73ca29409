"""Whatever a scheduler does with requests, a dump has exactly its prompt's rows or does not exist."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from hsops.core.dumps import Sample, token_bytes, token_hash
from hsops.payload.hsops_hs_dump.capture import Capture
from hsops.payload.hsops_hs_dump.rows import Ticket
from tests.unit.capture_parts import manifest
from tests.unit.test_capture_pass import Gathered, Model, capture_in, run

STEPS = ("run", "run", "run", "again", "abort", "skip", "retry", "broken")


@dataclass(eq=False)
class Request:
    """What a scheduler knows of a request, and what the test expects of it."""

    ticket: Ticket
    prompt: list[int]
    at: int = 0
    gone: bool = False
    seen: int = 0  # rows 0 to seen-1 were handed to capture in order
    opened: bool = False
    fault: str = ""

    @property
    def closed(self) -> bool:
        return bool(self.fault) or self.seen == len(self.prompt)

    @property
    def running(self) -> bool:
        return not self.gone and self.at < len(self.prompt)


@dataclass
class World:
    """One rank's capture under a made-up scheduler.

    The rules are said again here in their own words, from SGLang's side: chunks, retraction to the first token, aborts.
    """

    capture: Capture
    requests: list[Request] = field(default_factory=list)
    begun: int = 0
    broken: bool = False

    def begin(self, name: str, length: int) -> None:
        prompt = list(range(1000 * self.begun + 1, 1000 * self.begun + 1 + length))
        self.begun += 1
        self.requests.append(Request(Ticket(name, length), prompt))

    def step(self, what: str, pick: int, chunk: int) -> None:
        running = [r for r in self.requests if r.running]
        if not running:
            return
        first = running[pick % len(running)]
        if what == "again":
            first.at = 0
        elif what == "abort":
            first.gone = True
        elif what == "retry":
            self.begin(first.ticket.id, len(first.prompt))
        elif what == "skip":
            first.at = min(first.at + 1, len(first.prompt) - 1)
        else:
            self.forward([first, *(r for r in running if r is not first)][: 1 + chunk % 3], chunk, what == "broken")

    def forward(self, batch: list[Request], chunk: int, broken: bool) -> None:
        lengths = [min(chunk, len(r.prompt) - r.at) for r in batch]
        for request in batch:
            self._open(request)
        for request, length in zip(batch, lengths, strict=True):
            before = request.seen
            self._expect(request, length)
            if broken and request.seen > before:
                request.fault = "broken"
        made = SimpleNamespace(
            forward_mode=SimpleNamespace(name="EXTEND"),
            input_ids=[i for r, n in zip(batch, lengths, strict=True) for i in r.prompt[r.at : r.at + n]] + [-1, -2],
            extend_seq_lens_cpu=[*lengths, 2],
            extend_prefix_lens_cpu=[*(r.at for r in batch), 0],
            _hsops_tickets=[*(r.ticket for r in batch), None],
        )
        self.broken = broken
        run(self.capture, Model(), made)
        for request, length in zip(batch, lengths, strict=True):
            request.at += length

    def _open(self, request: Request) -> None:
        if request.closed:
            return
        request.opened = True
        for other in self.requests:
            if other is not request and other.ticket.id == request.ticket.id and other.opened and not other.closed:
                other.fault = "replaced"

    def _expect(self, request: Request, length: int) -> None:
        if request.closed:
            return
        if request.at > request.seen:
            request.fault = "hole"
        else:
            request.seen = max(request.seen, request.at + length)


class Stage(Gathered):
    """A stage that fails when the world says so."""

    world: World

    def seal(self, token_ids: list[int]) -> None:
        super().seal(token_ids)
        if self.world.broken:
            self.problem = "broken"


def play(folder: Path, script: list[tuple[str, int, int]], lengths: list[int]) -> tuple[World, list[int]]:
    """The script on a capture that writes to ``folder``; returns the world and the rows of each tapped pass."""
    capture, _ = capture_in(folder)
    world, tapped = World(capture), list[int]()

    def new_stage(rows: int, slots: int, **options: Any) -> Stage:
        tapped.append(rows)
        stage = Stage(rows, slots, **options)
        stage.world = world
        return stage

    capture._new_stage = new_stage
    for number, length in enumerate(lengths):
        world.begin(f"s{number % 3}", length)
    for what, pick, chunk in script:
        world.step(what, pick, chunk)
    return world, tapped


SCRIPTS = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5), st.integers(1, 7)), max_size=25)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCRIPTS, st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_every_sample_is_whole_or_failed_with_a_reason(script: list[tuple[str, int, int]], lengths: list[int]) -> None:
    """Chunks, retractions, aborts, holes, second requests and broken passes, in any order; nothing is left over."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        world, tapped = play(folder, script, lengths)
        if world.capture._writers is None:
            assert not tapped
            return
        writer = world.capture._writers._data
        assert writer is not None
        writer.close()
        lines = manifest(folder)
        for request in world.requests:
            check(request, lines)
        last = {line.id: line for line in lines if line.ok}
        assert {path.name for path in folder.glob("*.safetensors*")} == {line.file for line in last.values()}
        for line in last.values():
            held = load_file(folder / line.file)
            assert token_hash(held["token_ids"].tobytes()) == line.token_hash
            assert (held["hidden_states"] == held["token_ids"][:, None, None]).all()
        assert writer._dispatcher.unfinished == 0
        assert sum(scribe.load for scribe in writer._scribes) == 0


def check(request: Request, lines: list[Sample]) -> None:
    """A request's lines: one when it was whole or failed, none when it never ran or was replaced."""
    mine = [line for line in lines if line.token_hash == token_hash(token_bytes(request.prompt))]
    whole = not request.fault and request.seen == len(request.prompt)
    assert len(mine) == whole
    failed = [line for line in lines if line.id == request.ticket.id and not line.ok]
    if request.fault and request.fault != "replaced":
        assert any(line.reason for line in failed)
    if not request.fault and 0 < request.seen < len(request.prompt):
        assert any("the server ended before its last rows came" in line.reason for line in failed)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@example(script=[("broken", 0, 3), ("run", 0, 3)], lengths=[12])
@given(SCRIPTS, st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_what_one_rank_knows_does_not_decide_what_is_tapped(
    script: list[tuple[str, int, int]], lengths: list[int]
) -> None:
    """Rank 0's passes may break; the others must still tap the same ones, as the taps may wait for all ranks."""
    whole = [("run" if what == "broken" else what, pick, chunk) for what, pick, chunk in script]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        first, here = play(Path(one), script, lengths)
        second, there = play(Path(other), whole, lengths)
        for world in (first, second):
            if world.capture._writers:
                world.capture._writers.close()

        assert here == there
