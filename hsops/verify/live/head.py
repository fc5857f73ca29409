"""The model's head on the host: the deployed package reads norm and lm_head there, gigabytes stay where they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hsops.core.command import Command
from hsops.core.deadline import Deadline
from hsops.remote.agent import Agent
from hsops.verify.live.evidence import Scores

MODULE = "hsops_hs_dump.lm_head"
# beside sglang with method: source; with method: hook below the state folder, which the arguments name
_RUN = (
    "import os, runpy, sys; sys.path[:0] = [os.path.expanduser(p) for p in sys.argv[1:]]; "
    f"runpy.run_module({MODULE!r}, run_name='__main__')"
)
HUB_CACHE = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME")
PATIENCE = Deadline(idle=600.0, total=600.0)  # gigabytes from a cold disk, and a large matrix product on a CPU


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's account of P: log-probability of each token but the first, and the best token at each place."""

    logprobs: tuple[float, ...]
    best: tuple[int, ...]


def read_answer(meta: Any, ids: Sequence[int]) -> Answer | str:
    """From ``/generate``'s ``meta_info`` with ``return_logprob`` and one top log-probability; else what is odd in it.

    Args:
        meta: ``meta_info`` of one request: entries are [log-probability, token id, text], the first one has none.
        ids: the prompt.
    """
    try:
        tokens, best = meta["input_token_logprobs"][1:], meta["input_top_logprobs"][1:]
        answer = Answer(tuple(float(entry[0]) for entry in tokens), tuple(int(entry[0][1]) for entry in best))
        told = [int(entry[1]) for entry in tokens]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        return f"the server's log-probabilities have another form than known: {type(error).__name__}: {error}"
    if told != list(ids[1:]) or len(answer.best) != len(told):
        return f"the server's log-probabilities are of {len(told)} other tokens than the prompt's {len(ids)}"
    return answer


@dataclass(frozen=True, slots=True)
class Launched:
    """How the server was launched, as far as its head goes.

    Args:
        model: a folder on the host, or a hub id.
        load_format: SGLang's word; ``dummy`` means random weights.
        env: of its launch.
        patches: identities of what was deployed.
        full_precision: logits are computed in float32 (--enable-fp32-lm-head).
    """

    model: str
    load_format: str
    env: Mapping[str, str]
    patches: Sequence[str]
    full_precision: bool


def score(agent: Agent, dump: str, final: str, launched: Launched, answer: Answer) -> dict[str, Scores] | str:
    """Hold the final states of a dump on the host against the server's answer, there.

    Args:
        agent: on the host.
        dump: the file there.
        final: which states it has: ``pre-norm``, ``post-norm`` or ``both``.
        launched: how the server was.
        answer: the server's.

    Returns:
        Both sides, by state; or why they cannot be had.
    """
    cache = {name: value for name, value in launched.env.items() if name in HUB_CACHE}
    wanted = {"dump": dump, "final": final, "model": launched.model, "env": cache, "float32": launched.full_precision}
    folders = [f"{agent.state_dir}/hook/{identity}" for identity in launched.patches]
    command = Command((agent.python, "-I", "-c", _RUN, *folders))
    done = agent.host.run(command, stdin=json.dumps(wanted).encode(), deadline=PATIENCE)
    said = [line for line in done.stdout.splitlines() if line.startswith(b"{")]
    if done.exit != 0 or not said:
        last = done.stderr.decode(errors="replace").strip().splitlines()
        return f"{MODULE} did not run on the host: {last[-1] if last else f'exit {done.exit}'}"
    found = json.loads(said[-1])
    if "skipped" in found:
        return str(found["skipped"])
    try:
        return {slot: _scores(one, answer) for slot, one in found.items()}
    except (KeyError, TypeError, ValueError) as error:
        return f"{MODULE} answered otherwise than known: {type(error).__name__}: {error}"


def _scores(ours: Mapping[str, Any], answer: Answer) -> Scores:
    pairs = list(zip(ours["best"], answer.best, strict=True))
    agreement = sum(a == b for a, b in pairs) / max(1, len(pairs))
    if len(ours["logprobs"]) != len(answer.logprobs):
        raise ValueError(f"{len(ours['logprobs'])} log-probabilities for {len(answer.logprobs)} of the server")
    return Scores(tuple(ours["logprobs"]), answer.logprobs, agreement, float(ours["largest"]))
