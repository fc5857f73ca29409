"""Reads what the ranks wrote and judges it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hsops.core.errors import BadDataError, HsopsError
from hsops.verify.live import head, judge
from hsops.verify.live.checks import PASS, Check, skipped
from hsops.verify.live.drive import Seen
from hsops.verify.live.evidence import Scores, Taken
from hsops.verify.live.folder import CheckFolder, Lines
from hsops.verify.live.head import Launched
from hsops.verify.live.measure import States, differences, read_states, slots_of
from hsops.verify.live.plan import AGAIN, ALONE, BATCH, CUT, SCORED, Plan, scored_name
from hsops.verify.live.second import Second, by_size, judge_second, undecided

Bring = Callable[[str, Path], object]  # (dump folder on the host, folder here): all its dumps, checked


class Bench:
    """The dumps of one verify, and the checks on them.

    Args:
        seen: what came of the requests.
        folder: where the ranks wrote.
        here: an empty folder of this machine.
        bring: fetches a dump folder of the host.
    """

    def __init__(self, todo: Plan, seen: Seen, folder: CheckFolder, *, here: Path, bring: Bring) -> None:
        self._plan, self._seen, self._folder, self._here, self._bring = todo, seen, folder, here, bring
        self.alone: Taken | None = self._line(ALONE)
        self.open: dict[str, str] = {}  # checks that failed by size alone, and the call each is about

    def judge(self) -> list[Check]:
        """All checks on dumps alone."""
        found = [self._ranks(self._folder.wait([*self._seen.names.values()])), self._distinct()]
        return [*found, self._pair("repeat", AGAIN), self._pair("batch", BATCH), self._pair("cut", CUT)]

    def _ranks(self, lines: Lines) -> Check:
        check = judge.judge_ranks(lines, self._folder.ranks)
        for name in check.figures.get("differ", ())[:1]:
            with suppress(HsopsError):  # that they differ is known; by how much is a help, no more
                check.figures["states"] = self._apart(name, lines[name])
        return check

    def _apart(self, name: str, lines: tuple[Taken | None, ...]) -> list[dict[str, Any]]:
        """How far the first rank that differs is from rank 0, state by state."""
        first = lines[0]
        for rank, line in enumerate(lines):
            if first and line and line.sample.ok and line.sample.checksum != first.sample.checksum:
                a, b = self._states(name, first, rank=0), self._states(name, line, rank=rank)
                found = differences(a, b, slots_of(first.sample), limit=judge.LIMITS[first.sample.dtype].row)
                return [{"rank": rank, "slot": d.slot, "median": d.median, "largest": d.largest} for d in found]
        return []

    def _distinct(self) -> Check:
        lines = {name: self._seen.first.get(name) for name in self._seen.names.values()}
        whole = {name: line for name, line in lines.items() if line and line.sample.ok}
        dumps = {name: self._states(name, line, rank=0) for name, line in whole.items()}
        return judge.judge_distinct(dumps, next((slots_of(line.sample) for line in whole.values()), ()))

    def _pair(self, check: str, call: str) -> Check:
        """P alone against P of another call."""
        if reason := self._plan.skipped.get(call):
            return skipped(check, reason)
        if wrong := self._came(check, ALONE) or self._came(check, call):
            return wrong
        alone, other, a, b = self._both(ALONE, call)
        found = judge.judge_pair(check, a, b, slots_of(alone.sample), alone.sample.dtype)
        if by_size(found, a, b, slots_of(alone.sample), alone.sample.dtype):
            self.open[check] = call
        return found if check == "repeat" else judge.judge_company(found, alone, other)

    def judge_again(self, first: Check, launched: Launched) -> Check:
        """A check in ``open``, after its call was sent once more with log-probabilities."""
        call, again = self.open[first.name], scored_name(self.open[first.name])
        assert self.alone
        slots, dtype = slots_of(self.alone.sample), self.alone.sample.dtype
        own = self._seen.answer(SCORED), self._seen.answer(again)
        if isinstance(own[0], str) or isinstance(own[1], str):
            why = next(answer for answer in own if isinstance(answer, str))
            return undecided(first, f"whether the model itself does this cannot be asked: {why}", dtype)
        if wrong := self._came(first.name, SCORED) or self._came(first.name, again):
            return wrong
        alone, other, a, b = self._both(SCORED, again)
        first.figures["again_rows"] = list(other.passes)
        company = Check(first.name, PASS, "")
        if first.name != "repeat":
            company = judge.judge_company(company, alone, other)
        if company.status != PASS:
            return undecided(first, f"sent again: {company.reason}", dtype)
        once = self._line(call)
        same = once is not None and once.passes == other.passes
        second = Second(a, b, same, (own[0].logprobs, own[1].logprobs), self._scores(again, launched))
        return judge_second(first, second, slots, dtype)

    def judge_head(self, launched: Launched) -> Check:
        """The final state against the server's log-probabilities."""
        scored = self._line(SCORED)
        if SCORED in self._seen.names and (wrong := self._came("lm_head", SCORED)):
            return wrong
        scores = self._scores(SCORED, launched)
        if isinstance(scores, str) or not scored:
            return skipped("lm_head", str(scores))
        return judge.judge_head(scores, scored.sample.dtype)

    def _scores(self, call: str, launched: Launched) -> Mapping[str, Scores] | str:
        """Of a call's final states, or why there are none."""
        line, answer = self._line(call), self._seen.answer(call)
        if line and line.sample.final == "none":
            return "no final state is captured: patches.<name>.final: pre-norm, deploy, launch"
        if launched.load_format == "dummy":
            return "the weights are random (load-format dummy): there are none on the disk"
        if isinstance(answer, str) or not line:
            return str(answer)
        dump = self._folder.file(0, self._seen.names[call])
        return head.score(self._folder.agent, dump, line.sample.final, launched, answer)

    def _came(self, check: str, call: str) -> Check | None:
        return judge.judge_came(check, self._line(call), self._seen.sent, self._plan.subject)

    def _both(self, one: str, other: str) -> tuple[Taken, Taken, States, States]:
        """Lines and states of two calls whose dumps came."""
        a, b = self._line(one), self._line(other)
        assert a and b
        return (
            a,
            b,
            self._states(self._seen.names[one], a, rank=0),
            self._states(self._seen.names[other], b, rank=0),
        )

    def _line(self, call: str) -> Taken | None:
        return self._seen.first.get(self._seen.names.get(call, ""))

    def _states(self, name: str, line: Taken, *, rank: int) -> States:
        here = self._here / f"rank{rank}"
        if not (here / line.sample.file).exists():  # all that is there comes, once for each time that was asked
            self._bring(self._folder.rank(rank), here)
        try:
            return read_states(here / line.sample.file, line.sample)
        except OSError as error:
            raise BadDataError(f"the dump of {name!r} did not come: {error.strerror}") from None
