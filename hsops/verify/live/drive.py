"""Sends the check requests and waits for what the ranks wrote of them. Whatever happens, nothing of it stays."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from hsops.core.dumps import CHECK_PREFIX, token_bytes, token_hash
from hsops.core.errors import HsopsError
from hsops.core.events import Emit, Note, Progress
from hsops.core.runs import Run
from hsops.remote.agent import Agent
from hsops.remote.server import RejectedError, Server
from hsops.verify.live import head
from hsops.verify.live.checks import AGAIN
from hsops.verify.live.evidence import Taken
from hsops.verify.live.folder import CheckFolder
from hsops.verify.live.plan import BATCH, CUT, Call, Plan, prompts

ATTEMPTS = 6  # how soon a batch's requests reach the scheduler is not ours to say, least of all on a busy host
OTHERS = "hsfill-"  # neither of the prefixes that are captured


@dataclass
class Seen:
    """What came of the requests so far.

    Args:
        names: of the captured requests, by call: the attempt that counts.
        first: rank 0's line of each captured request that has one.
        sent: hash of P's token ids.
        answers: the server's log-probabilities of P, by call, or why there are none.
    """

    names: dict[str, str] = field(default_factory=dict)
    first: dict[str, Taken] = field(default_factory=dict)
    sent: str = ""
    answers: dict[str, head.Answer | str] = field(default_factory=dict)

    def answer(self, call: str) -> head.Answer | str:
        """Of one call."""
        return self.answers.get(call, "the prompt was not sent")


@contextmanager
def check_folder(agent: Agent, run: Run, server: Server, emit: Emit) -> Iterator[CheckFolder]:
    """The run's check folder; on every way out the requests under way are aborted and the dumps removed."""
    folder = CheckFolder(agent, run.dump_dir, ranks=run.tp, token=secrets.token_hex(4))
    try:
        yield folder
    except BaseException:
        try:
            for rid in folder.under_way:
                with suppress(HsopsError):
                    server.abort(rid)
            folder.clear(busy=True)
        except HsopsError as error:  # what went wrong first is what must be told
            emit(Note(f"{error.message}; {error.fix}", agent.host.name, "warn"))
        raise
    folder.clear(busy=False)


def drive(server: Server, folder: CheckFolder, plan: Plan, emit: Emit, *, steps: int) -> Seen:
    """Send all calls of the plan, one after the other.

    Raises:
        HsopsError: the server refused, broke, or captures nothing.
    """
    seen = Seen()
    for number, call in enumerate(plan.calls):
        emit(Progress("verify", number, steps, "steps", detail=_told(call, plan.subject)))
        _ask(server, folder, call, plan, seen)
    return seen


def ask_again(server: Server, folder: CheckFolder, name: str, plan: Plan, seen: Seen) -> None:
    """Send a call of the plan once more, with log-probabilities of P; ``seen`` has it under ``scored_name(name)``.

    Raises:
        HsopsError: the server broke.
    """
    (call,) = (call for call in plan.calls if call.name == name)
    _ask(server, folder, replace(call, scored=True), plan, seen)


def _ask(server: Server, folder: CheckFolder, call: Call, plan: Plan, seen: Seen) -> None:
    """Until the scheduler put the requests together as the plan has it, or often enough."""
    ids, key = prompts(call, plan.subject, plan.vocabulary), call.key
    p = ids[len(call.before)]
    for attempt in range(1, (ATTEMPTS if call.name in (BATCH, CUT) else 1) + 1):
        name = f"{key}-{attempt}"
        try:
            answer = _send(server, folder, call, name, ids)
        except RejectedError as error:
            if not call.scored:
                raise
            seen.answers[key] = f"the server refuses to tell log-probabilities: {error.message}"
            return
        seen.names[key] = name
        (line,) = folder.wait([name], ranks=1)[name]
        if line is not None:
            seen.first[name] = line
        elif not seen.first:
            raise _silent(server.host)
        if call.scored:
            seen.answers[key] = head.read_answer(answer.get("meta_info"), p)
        if _as_meant(call, line, seen):
            break
    seen.sent = token_hash(token_bytes(p))


def _send(server: Server, folder: CheckFolder, call: Call, name: str, ids: list[list[int]]) -> Mapping[str, Any]:
    rids = [f"{OTHERS}{folder.token}.{name}.{i}" for i in range(len(ids))]
    rids[len(call.before)] = CHECK_PREFIX + folder.sample(name)
    alone = len(ids) == 1
    body: dict[str, Any] = {
        "rid": rids[0] if alone else rids,
        "input_ids": ids[0] if alone else ids,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
    }
    if call.scored:
        body |= {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1} if alone else _scored(rids)
    folder.under_way = tuple(rids)
    answer = server.ask(body, sum(len(one) for one in ids))
    folder.under_way = ()
    mine = answer[len(call.before)] if isinstance(answer, list) and len(answer) == len(ids) else answer
    return mine if isinstance(mine, dict) else {}


def _scored(rids: list[str]) -> dict[str, Any]:
    """Of P alone: log-probabilities of a whole batch would be gigabytes."""
    wanted = [rid.startswith(CHECK_PREFIX) for rid in rids]
    starts, tops = [0 if one else -1 for one in wanted], [int(one) for one in wanted]
    return {"return_logprob": wanted, "logprob_start_len": starts, "top_logprobs_num": tops}


def _as_meant(call: Call, line: Taken | None, seen: Seen) -> bool:
    """Whether the scheduler put the requests together as the plan has it; a failed sample is not tried again."""
    if line is None or not line.sample.ok or call.name not in (BATCH, CUT):
        return True
    if call.name == CUT:
        return len(line.passes) > 1 and line.passes != _alone(seen)
    return max(line.passes, default=0) >= call.tokens(line.sample.tokens) - sum(call.before[:1])


def _alone(seen: Seen) -> tuple[int, ...]:
    return next(iter(seen.first.values())).passes


def _told(call: Call, subject: int) -> str:
    return f"{subject:,} tokens {call.name}, {call.tokens(subject):,} in all"


def _silent(host: str) -> HsopsError:
    return HsopsError(
        "the server answered, but its ranks wrote nothing of a check request",
        host=host,
        why="the capture that runs is of an hsops that knew no checks, or its writer is stuck",
        fix=AGAIN,
    )
