"""Before anything is sent: token ids for every prompt, and none that the server cannot take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hsops.core.dumps import token_bytes
from hsops.core.errors import ConfigError, Fault
from hsops.core.prompts import Prompt, shorten
from hsops.remote.server import BrokenError, RejectedError, Server
from hsops.remote.tokenizer import Made, Tokenizer, tokenizer_of

TEXTS = 64  # tokenised in one request
NONE = Tokenizer("")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server takes.

    Args:
        name: the server's.
        tokenizer: it has one.
        tokens: a prompt must have fewer; None when unknown.
        vocabulary: a token id must be smaller; None when unknown.
        own: the tokenizer that belongs to its model.
    """

    name: str
    tokenizer: bool
    tokens: int | None
    vocabulary: int | None
    own: Tokenizer = NONE


def limits_of(name: str, info: Mapping[str, Any], model: Mapping[str, Any]) -> Limits:
    """From SGLang's ``server_info`` and the model's ``config.json``."""
    tokens, vocabulary = info.get("max_req_input_len"), model.get("vocab_size")
    return Limits(
        name,
        tokenizer=not info.get("skip_tokenizer_init"),
        tokens=tokens if isinstance(tokens, int) else None,
        vocabulary=vocabulary if isinstance(vocabulary, int) else None,
        own=tokenizer_of(info),
    )


def settle(
    server: Server,
    prompts: Sequence[Prompt],
    limits: Limits,
    *,
    file: str,
    own: Callable[[Tokenizer, Sequence[Prompt]], Sequence[Made]],
) -> tuple[Prompt, ...]:
    """The prompts with token ids, and with the loss mask of those that are conversations.

    They become ids first and are sent as ids, so that every dump can be held against what was sent.

    Args:
        server: tokenises texts, if it has a tokenizer.
        prompts: with ids, text or messages.
        limits: of the server.
        file: name of the prompts file, for faults.
        own: the model's own tokenizer on the host, for the rest.

    Raises:
        ConfigError: a conversation has no certain loss mask, or the server cannot take some of the prompts.
        HsopsError: a tokenizer failed.
    """
    made = dict[str, Made]()
    texts = [prompt for prompt in prompts if prompt.text and limits.tokenizer]
    for start in range(0, len(texts), TEXTS):
        made.update(_tokenize(server, texts[start : start + TEXTS]))
    left = [prompt for prompt in prompts if not prompt.tokens and prompt.id not in made]
    if left:
        made.update(zip((prompt.id for prompt in left), own(limits.own, left), strict=True))
    if wrong := [p.fault(file, _key(p), made[p.id].error) for p in left if made[p.id].error]:
        raise ConfigError(shorten(wrong), fix="leave these out, or give input_ids and loss_mask")
    settled = tuple(_settled(prompt, made.get(prompt.id)) for prompt in prompts)
    if faults := list(refused(settled, limits, file=file)):
        raise ConfigError(shorten(faults), fix="change these prompts, or launch with a larger context-length")
    return settled


def _key(prompt: Prompt) -> str:
    return "messages" if prompt.messages else "text"


def _settled(prompt: Prompt, made: Made | None) -> Prompt:
    if made is None:
        return prompt
    return replace(prompt, tokens=made.tokens, mask=made.mask or prompt.mask, text="", messages="")


def refused(prompts: Sequence[Prompt], limits: Limits, *, file: str) -> Iterator[Fault]:
    """Faults of prompts that would fail, or worse.

    SGLang's scheduler refuses ``max_req_input_len`` tokens and more. It does not look at token ids (0.5.9, 0.5.23): one
    beyond the vocabulary is embedded as something, and the dump would be of that.
    """
    for prompt in prompts:
        if not prompt.count:
            yield prompt.fault(file, "", "the tokenizer makes no tokens of it")
        elif prompt.mask and len(prompt.mask) != prompt.count:
            yield prompt.fault(file, "loss_mask", f"{len(prompt.mask):,} of them for {prompt.count:,} tokens")
        elif limits.tokens is not None and prompt.count >= limits.tokens:
            message = f"{prompt.count:,} tokens; {limits.name} takes fewer than {limits.tokens:,}"
            yield prompt.fault(file, "", message)
        elif limits.vocabulary is not None and (largest := max(ids := prompt.ids())) >= limits.vocabulary:
            message = f"{largest} is beyond the model's vocabulary of {limits.vocabulary:,}"
            yield prompt.fault(file, f"input_ids[{ids.index(largest)}]", message)


def _tokenize(server: Server, texts: Sequence[Prompt]) -> dict[str, Made]:
    """Nothing where the server cannot: /tokenize fails when model_max_length is beyond 64 bits (seen with 0.5.9)."""
    try:
        found = server.tokenize([prompt.text for prompt in texts])
    except (BrokenError, RejectedError):
        return {}
    return {prompt.id: Made(token_bytes(ids)) for prompt, ids in zip(texts, found, strict=True)}
