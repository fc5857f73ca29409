"""From what was seen to pass or fail. Pure.

Limits by dtype. In float32 another batch shape changes the order of sums only: 1e-6. In bfloat16 every layer rounds
(2^-9 a value), and a router that picks other experts for a row moves that row alone, so the median over the rows
decides, and single rows may go far. A partial sum moves every row of a boundary but never the final state, whose noise
is the largest of all; hence a boundary is also held to the final's own median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from hsops.verify.live.checks import FAIL, PASS, Check, skipped
from hsops.verify.live.evidence import Scores, Taken
from hsops.verify.live.measure import FINAL, NORMED, Difference, States, alike, differences
from hsops.verify.live.plan import LARGE


@dataclass(frozen=True, slots=True)
class Limits:
    """What two captures of the same rows may differ by.

    Args:
        median: of the rows' relative errors.
        row: one row's, which ``share`` of the rows may exceed.
        share: of the rows.
        over_final: a boundary's median over ``floor`` + so many times the final's; None where it is not asked.
    """

    median: float
    row: float
    share: float
    over_final: float | None = None
    floor: float = 0.01

    def __str__(self) -> str:
        share = f"{self.share:.0%} of the rows" if self.share else "no row"
        final = f", boundaries within {self.floor:g} + {self.over_final:g} x the final's" if self.over_final else ""
        return f"median <= {self.median:g}{final}; {share} above {self.row:g}"


LIMITS = {
    "F32": Limits(1e-5, 1e-4, 0.0),
    "F16": Limits(0.02, 0.5, 0.05, over_final=3.0),
    "BF16": Limits(0.1, 0.5, 0.05, over_final=3.0),
}
EPSILON = {"F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}  # one unit in the last place of 1
HEAD_MEDIAN, HEAD_LARGEST, HEAD_TOP = 0.5, 8.0, 0.9  # the first two in units of the largest logit's last place
HEAD_FLOOR = 1e-4  # float32: sums of thousands of products in another order


def judge_ranks(taken: Mapping[str, Sequence[Taken | None]], ranks: int) -> Check:
    """Every dump has the same bytes on every rank.

    Args:
        taken: by request, what each rank's manifest says of it.
        ranks: how many there are.
    """
    if ranks == 1:
        return skipped("ranks", "the server has one rank: there is nothing to compare")
    differ, rows = [], 0
    if not any(line and line.sample.ok for lines in taken.values() for line in lines):
        return skipped("ranks", "no request has a dump")
    for name, lines in taken.items():
        silent = [f"TP{rank}" for rank, line in enumerate(lines) if line is None]
        if silent:
            return Check("ranks", FAIL, f"{', '.join(silent)} wrote nothing of {name!r}", {"dumps": len(taken)})
        kept = {(line.sample.status, line.sample.bytes, line.sample.checksum) for line in lines if line}
        rows += next(line.sample.tokens for line in lines if line)
        if len(kept) > 1:
            differ.append(name)
    figures = {"ranks": ranks, "dumps": len(taken), "rows": rows, "differ": differ}
    threshold = "checksums of whole dumps are equal"
    if differ:
        return Check("ranks", FAIL, f"ranks differ in {', '.join(differ)}", figures, threshold)
    return Check("ranks", PASS, f"{len(taken)} dumps, {rows:,} rows, {ranks} ranks: the same bytes", figures, threshold)


def judge_distinct(dumps: Mapping[str, States], slots: Sequence[str]) -> Check:
    """No two neighbouring states of a dump have mostly equal rows.

    A reference instead of a copy makes all rows equal. A few may be equal on their own: a layer that adds less to a row
    than bfloat16 can tell leaves it as it was.

    Args:
        dumps: by request. Large passes and small ones take different kernels, which write in different places.
        slots: the names of their states.
    """
    if len(slots) < 2 or not dumps:
        return skipped("distinct", "one state only: there is nothing to compare" if dumps else "no request has a dump")
    found = [(name, *same) for name, states in dumps.items() for same in alike(states, slots)]
    rows = sum(len(states) for states in dumps.values())
    figures = {"dumps": len(dumps), "rows": rows, "equal_rows": {f"{n}: {a} = {b}": same for n, a, b, same in found}}
    threshold = "less than half of the rows are equal"
    if not found:
        return Check("distinct", PASS, f"{len(slots)} states in {len(dumps)} dumps, no equal rows", figures, threshold)
    name, a, b, same = max(found, key=lambda one: one[3] / len(dumps[one[0]]))
    status = FAIL if 2 * same >= len(dumps[name]) else PASS
    reason = f"{a} equals {b} in {same:,} of {len(dumps[name]):,} rows of {name!r}"
    return Check("distinct", status, reason, figures, threshold)


def judge_pair(name: str, a: States, b: States, slots: Sequence[str], dtype: str) -> Check:
    """Two captures of the same prompt are the same states, but for rounding."""
    limits = LIMITS[dtype]
    if a.shape != b.shape:
        return Check(name, FAIL, f"shapes {list(a.shape)} and {list(b.shape)}", {}, str(limits))
    found = differences(a, b, slots, limit=limits.row)
    final = next((d.median for d in found if d.slot in (FINAL, NORMED)), None)
    wrong = [why for one in found if (why := _beyond(one, limits, len(a), final))]
    figures = {"rows": len(a), "equal": all(d.largest == 0 for d in found), "states": [asdict(d) for d in found]}
    worst = max(found, key=lambda d: (d.median, d.largest))
    seen = f"{worst.slot}: median {worst.median:.2g}, largest {worst.largest:.2g}, cosine >= {worst.cosine:.6f}"
    if wrong:
        return Check(name, FAIL, "; ".join(wrong), figures, str(limits))
    return Check(name, PASS, "bit for bit equal" if figures["equal"] else f"worst {seen}", figures, str(limits))


def judge_company(check: Check, alone: Taken, other: Taken) -> Check:
    """Says in how large a pass P was; a check whose requests were not computed together is none."""
    largest = max(other.passes, default=0)
    check.figures["pass_rows"] = {"alone": list(alone.passes), check.name: list(other.passes)}
    if check.status == FAIL:
        return check
    if check.name == "batch":
        if largest < 2 * max(alone.passes, default=1):
            return skipped("batch", f"the server did not compute them together: the largest pass had {largest:,} rows")
        much = "" if largest > LARGE else f" (fusion ends at {LARGE:,}: the server has no room for more)"
        return _with(check, f"in a pass of {largest:,} rows{much}: {check.reason}")
    if len(other.passes) < 2 or other.passes == alone.passes:
        return skipped("cut", f"the scheduler did not cut the prompt: its passes had {list(other.passes)} rows")
    return _with(check, f"in {len(other.passes)} passes, alone in {len(alone.passes)}: {check.reason}")


def judge_head(scores: Mapping[str, Scores], dtype: str) -> Check:
    """Log-probabilities from every final state that was captured, before the norm or after it, are the server's own.

    Both sides round logits to the model's dtype, so they may differ by the last place of the largest logit; a state
    that is not the final one is off by what logits vary, and finds another best token.
    """
    checks = [_judge_scores(slot, one, dtype) for slot, one in scores.items()]
    failed = next((check for check in checks if check.status == FAIL), None)
    return failed or checks[0]


def _judge_scores(slot: str, scores: Scores, dtype: str) -> Check:
    ours, theirs = np.asarray(scores.ours, np.float64), np.asarray(scores.server, np.float64)
    apart = np.abs(ours - theirs)
    apart[~np.isfinite(apart)] = np.inf
    median_limit, limit = (rounding_of(scores.largest, dtype, places) for places in (HEAD_MEDIAN, HEAD_LARGEST))
    median, largest, top = float(np.median(apart)), float(apart.max()), scores.agreement
    figures = {
        "state": slot,
        "tokens": len(ours),
        "median": median,
        "largest": largest,
        "at": int(apart.argmax()),
        "top1": top,
    }
    threshold = f"median <= {median_limit:.2g}, largest <= {limit:.2g}, top-1 agreement >= {HEAD_TOP:.0%}"
    seen = (
        f"{slot}: {len(ours):,} log-probabilities: median off by {median:.2g}, at most {largest:.2g}; top-1 {top:.1%}"
    )
    good = median <= median_limit and largest <= limit and top >= HEAD_TOP
    return Check("lm_head", PASS if good else FAIL, seen, figures, threshold)


def rounding_of(largest: float, dtype: str, places: float = HEAD_MEDIAN) -> float:
    """How far log-probabilities of the same states may be apart, where logits are at most ``largest``.

    Args:
        largest: absolute value.
        dtype: the logits are rounded to.
        places: units of its last place; as many as a median may be off when left out.
    """
    return max(HEAD_FLOOR, places * max(largest, 1.0) * EPSILON[dtype])


def judge_came(name: str, sample: Taken | None, sent: str, tokens: int) -> Check | None:
    """A failed check when a request's dump is missing, failed, or of other tokens; None when it is whole."""
    if sample is None:
        return Check(name, FAIL, "rank 0 wrote no line for it")
    if not sample.sample.ok:
        return Check(name, FAIL, f"no dump: {sample.sample.reason or 'without a reason'}")
    if sample.sample.tokens != tokens:
        return Check(name, FAIL, f"{sample.sample.tokens} rows for {tokens} tokens")
    if sample.sample.token_hash and sample.sample.token_hash != sent:
        return Check(name, FAIL, "the dump holds other token ids than were sent")
    return None


def _beyond(one: Difference, limits: Limits, rows: int, final: float | None) -> str:
    if one.median > limits.median:
        return f"{one.slot}: median {one.median:.2g}"
    if one.above > limits.share * rows:
        return f"{one.slot}: {one.above:,} of {rows:,} rows above {limits.row:g}, row {one.row} by {one.largest:.2g}"
    if limits.over_final and final is not None and one.median > limits.floor + limits.over_final * final:
        return f"{one.slot}: median {one.median:.2g}, the final state's is {final:.2g}"
    return ""


def _with(check: Check, reason: str) -> Check:
    return Check(check.name, check.status, reason, check.figures, check.threshold)
