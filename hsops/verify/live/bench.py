"""Reads what the ranks wrote and judges it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hsops.core.errors import BadDataError, HsopsError
from hsops.verify.live import head, judge
from hsops.verify.live.checks import Check, skipped
from hsops.verify.live.drive import Seen
from hsops.verify.live.evidence import Taken
from hsops.verify.live.folder import CheckFolder, Lines
from hsops.verify.live.head import Launched
from hsops.verify.live.measure import States, differences, read_states, slots_of
from hsops.verify.live.plan import AGAIN, ALONE, BATCH, CUT, SCORED, Plan

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
        self._came: dict[int, Path] = {}
        self.alone: Taken | None = self._line(ALONE)

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
        for name in (ALONE, call):
            if wrong := judge.judge_came(check, self._line(name), self._seen.sent, self._plan.subject):
                return wrong
        alone, other = self._line(ALONE), self._line(call)
        assert alone and other
        a = self._states(self._seen.names[ALONE], alone, rank=0)
        b = self._states(self._seen.names[call], other, rank=0)
        found = judge.judge_pair(check, a, b, slots_of(alone.sample), alone.sample.dtype)
        return found if check == "repeat" else judge.judge_company(found, alone, other)

    def judge_head(self, launched: Launched) -> Check:
        """The final state against the server's log-probabilities."""
        scored, answer = self._line(SCORED), self._seen.answer
        if wrong := judge.judge_came("lm_head", scored, self._seen.sent, self._plan.subject):
            return wrong
        assert scored
        if scored.sample.final == "none":
            return skipped("lm_head", "no final state is captured: patches.<name>.final: pre-norm, deploy, launch")
        if launched.load_format == "dummy":
            return skipped("lm_head", "the weights are random (load-format dummy): there are none on the disk")
        if isinstance(answer, str):
            return skipped("lm_head", answer)
        dump = self._folder.file(0, self._seen.names[SCORED])
        scores = head.score(self._folder.agent, dump, scored.sample.final, launched, answer)
        if isinstance(scores, str):
            return skipped("lm_head", scores)
        return judge.judge_head(scores, scored.sample.dtype)

    def _line(self, call: str) -> Taken | None:
        return self._seen.first.get(self._seen.names.get(call, ""))

    def _states(self, name: str, line: Taken, *, rank: int) -> States:
        if rank not in self._came:
            self._came[rank] = self._here / f"rank{rank}"
            self._bring(self._folder.rank(rank), self._came[rank])
        try:
            return read_states(self._came[rank] / line.sample.file, line.sample)
        except OSError as error:
            raise BadDataError(f"the dump of {name!r} did not come: {error.strerror}") from None
