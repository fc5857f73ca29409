"""Before anything is sent: token ids for every prompt, and none that the server cannot take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hsops.core.dumps import token_bytes
from hsops.core.errors import ConfigError, Fault, HsopsError
from hsops.core.prompts import Prompt, shorten
from hsops.remote.server import BrokenError, RejectedError, Server

TEXTS = 64  # tokenised in one request


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server takes.

    Args:
        name: the server's.
        tokenizer: it has one.
        tokens: a prompt must have fewer; None when unknown.
        vocabulary: a token id must be smaller; None when unknown.
    """

    name: str
    tokenizer: bool
    tokens: int | None
    vocabulary: int | None


def limits_of(name: str, info: Mapping[str, Any], model: Mapping[str, Any]) -> Limits:
    """From SGLang's ``server_info`` and the model's ``config.json``."""
    tokens, vocabulary = info.get("max_req_input_len"), model.get("vocab_size")
    return Limits(
        name,
        tokenizer=not info.get("skip_tokenizer_init"),
        tokens=tokens if isinstance(tokens, int) else None,
        vocabulary=vocabulary if isinstance(vocabulary, int) else None,
    )


def settle(server: Server, prompts: Sequence[Prompt], limits: Limits, *, file: str) -> tuple[Prompt, ...]:
    """The prompts with token ids.

    Texts become ids first and are sent as ids, so that every dump can be held against what was sent.

    Args:
        server: asked to tokenise.
        prompts: with ids or with text.
        limits: of the server.
        file: name of the prompts file, for faults.

    Raises:
        ConfigError: the server has no tokenizer, or cannot take some of the prompts.
        HsopsError: its tokenizer failed.
    """
    if chats := [p.fault(file, "messages", "not tokenised yet") for p in prompts if p.messages]:
        raise ConfigError(shorten(chats), fix="render them to input_ids or text yourself")
    texts = [prompt for prompt in prompts if prompt.text]
    if texts and not limits.tokenizer:
        message = f"{limits.name} runs without a tokenizer (--skip-tokenizer-init)"
        faults = [p.fault(file, "text", message) for p in texts]
        raise ConfigError(shorten(faults), fix="give input_ids, or launch the server with its tokenizer")
    tokens: dict[str, bytes] = {}
    for start in range(0, len(texts), TEXTS):
        tokens.update(_tokenize(server, texts[start : start + TEXTS]))
    settled = tuple(replace(p, tokens=tokens.get(p.id, p.tokens), text="") for p in prompts)
    if faults := list(refused(settled, limits, file=file)):
        raise ConfigError(shorten(faults), fix="change these prompts, or launch with a larger context-length")
    return settled


def refused(prompts: Sequence[Prompt], limits: Limits, *, file: str) -> Iterator[Fault]:
    """Faults of prompts that would fail, or worse.

    SGLang's scheduler refuses ``max_req_input_len`` tokens and more. It does not look at token ids (0.5.9, 0.5.23): one
    beyond the vocabulary is embedded as something, and the dump would be of that.
    """
    for prompt in prompts:
        if not prompt.count:
            yield prompt.fault(file, "text", "the tokenizer makes no tokens of it")
        elif limits.tokens is not None and prompt.count >= limits.tokens:
            message = f"{prompt.count:,} tokens; {limits.name} takes fewer than {limits.tokens:,}"
            yield prompt.fault(file, "", message)
        elif limits.vocabulary is not None and (largest := max(ids := prompt.ids())) >= limits.vocabulary:
            message = f"{largest} is beyond the model's vocabulary of {limits.vocabulary:,}"
            yield prompt.fault(file, f"input_ids[{ids.index(largest)}]", message)


def _tokenize(server: Server, texts: Sequence[Prompt]) -> dict[str, bytes]:
    try:
        found = server.tokenize([prompt.text for prompt in texts])
    except (BrokenError, RejectedError) as error:
        raise HsopsError(
            f"the server cannot tokenise: {error.message}",
            host=error.host,
            why="SGLang's /tokenize fails when the tokenizer's model_max_length is beyond 64 bits (seen with 0.5.9)",
            fix="tokenise on your side and give input_ids",
        ) from None
    return {prompt.id: token_bytes(ids) for prompt, ids in zip(texts, found, strict=True)}
