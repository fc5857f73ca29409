"""The model's own tokenizer: a process of the interpreter that runs SGLang, beside the server, for as long as it is
asked. Prompts go there in batches and come back as token ids, and conversations with their loss mask."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from hsops.core.command import Command
from hsops.core.deadline import Deadline
from hsops.core.dumps import token_bytes
from hsops.core.errors import HsopsError, RemoteError
from hsops.core.events import Emit
from hsops.core.meter import Meter
from hsops.core.prompts import LARGEST_TOKEN, Prompt
from hsops.remote.agent import Agent
from hsops.remote.host import Stream
from hsops.remote.talk import lines

LOADING = Deadline(idle=300.0, total=300.0)  # transformers from a busy file system
BATCH = Deadline(idle=300.0, total=300.0)
PROMPTS, CHARACTERS = 64, 1 << 20  # of a batch, and so of memory, at both ends
TOLD_S = 0.5
_MARK = b'{"hsops": '


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Which one: as the server was launched with it.

    Args:
        path: on the host, or a hub id.
        mode: ``auto`` or ``slow``.
        trust: its own code may run.
        revision: of a hub id; empty: the newest.
        template: the server's own chat template, a file on the host; empty: the tokenizer's.
    """

    path: str
    mode: str = "auto"
    trust: bool = False
    revision: str = ""
    template: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """What became of a prompt: ``tokens`` as of ``token_bytes``, ``mask`` a byte a token; or why nothing did."""

    tokens: bytes
    mask: bytes = b""
    error: str = ""


def tokenizer_of(info: Mapping[str, Any]) -> Tokenizer:
    """From SGLang's ``server_info``."""
    return Tokenizer(
        path=str(info.get("tokenizer_path") or info.get("model_path") or ""),
        mode=str(info.get("tokenizer_mode") or "auto"),
        trust=bool(info.get("trust_remote_code")),
        revision=str(info.get("revision") or ""),
        template=str(info.get("chat_template") or ""),
    )


def tokenise(
    agent: Agent, tokenizer: Tokenizer, prompts: Sequence[Prompt], *, emit: Emit, env: Mapping[str, str]
) -> list[Made]:
    """Token ids of texts and conversations, in their order.

    Args:
        agent: on the host.
        tokenizer: the server's.
        prompts: each with ``text`` or ``messages``.
        emit: told the progress.
        env: the server's environment, for the hub's variables.

    Raises:
        HsopsError: it cannot be loaded there, has no chat template, or died.
    """
    source = files("hsops.payload").joinpath("tokenise.py").read_text(encoding="utf-8")
    command = Command((agent.python, "-c", source))
    chats = any(prompt.messages for prompt in prompts)
    meter, found, told = Meter("tokenise", "prompts", len(prompts)), list[Made](), time.monotonic()
    with agent.host.stream(command, deadline=LOADING, talk=True) as stream:
        heard = lines(stream)
        _load(stream, heard, agent, tokenizer, chats=chats, env=env)
        for batch in _batches(prompts):
            asked = [("text", p.text) if p.text else ("chat", json.loads(p.messages)) for p in batch]
            answers = _ask(stream, heard, agent, asked, BATCH)
            if not isinstance(answers, list) or len(answers) != len(batch):
                raise _odd(agent)
            found += [_made(agent, prompt, one) for prompt, one in zip(batch, answers, strict=True)]
            if time.monotonic() - told > TOLD_S or len(found) == len(prompts):
                told = time.monotonic()
                emit(meter.at(len(found)))
    return found


def _load(
    stream: Stream, heard: Iterator[bytes], agent: Agent, tokenizer: Tokenizer, *, chats: bool, env: Mapping[str, str]
) -> None:
    wanted = {
        "path": tokenizer.path,
        "mode": tokenizer.mode,
        "trust": tokenizer.trust,
        "revision": tokenizer.revision,
        "template": tokenizer.template,
        "env": dict(env),
    }
    loaded = _ask(stream, heard, agent, wanted, LOADING)
    if not isinstance(loaded, dict):
        raise _odd(agent)
    fix = "give input_ids, and loss_mask where a drafter is to learn from them"
    if error := loaded.get("error"):
        raise HsopsError(f"the tokenizer of {tokenizer.path} cannot be used: {error}", host=agent.host.name, fix=fix)
    if chats and not loaded.get("template"):
        raise HsopsError(f"the tokenizer of {tokenizer.path} has no chat template", host=agent.host.name, fix=fix)


def _ask(stream: Stream, heard: Iterator[bytes], agent: Agent, value: Any, deadline: Deadline) -> Any:
    """One line there, one back; others are what an interpreter's start prints."""
    stream.say(json.dumps(value).encode() + b"\n", deadline)
    for line in heard:
        if line.startswith(_MARK):
            try:
                return json.loads(line)["hsops"]
            except ValueError:
                raise _odd(agent) from None
    done = stream.finish()
    errors = done.stderr.decode(errors="replace").strip().splitlines()
    how = f"signal {-done.exit}" if done.exit < 0 else f"exit {done.exit}"
    raise RemoteError(
        f"the tokenizer's process ended ({how}): {errors[-1] if errors else 'it said nothing'}",
        host=agent.host.name,
        why="it runs beside the server, by the same interpreter, and needs memory of its own",
        fix="tokenise on your side and give input_ids",
    )


def _made(agent: Agent, prompt: Prompt, answer: Any) -> Made:
    """What the host says of one prompt, if it can be meant."""
    if not isinstance(answer, dict):
        raise _odd(agent)
    if error := answer.get("error"):
        return Made(b"", error=str(error))
    ids, mask = answer.get("ids"), answer.get("mask", "")
    if not isinstance(ids, list) or not all(type(id_) is int and 0 <= id_ <= LARGEST_TOKEN for id_ in ids):
        raise _odd(agent)
    if prompt.messages and not (isinstance(mask, str) and len(mask) == len(ids) and set(mask) <= set("01")):
        raise _odd(agent)
    return Made(token_bytes(ids), bytes(map(int, mask)))


def _odd(agent: Agent) -> RemoteError:
    return RemoteError("the tokenizer's process answers what cannot be meant", host=agent.host.name)


def _batches(prompts: Sequence[Prompt]) -> Iterator[list[Prompt]]:
    batch, size = list[Prompt](), 0
    for prompt in prompts:
        batch.append(prompt)
        size += len(prompt.text) + len(prompt.messages)
        if len(batch) == PROMPTS or size > CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
