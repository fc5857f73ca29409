"""Before anything is sent: token ids for every prompt, and none longer than the server takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hsops.core.dumps import token_bytes
from hsops.core.errors import ConfigError, Fault
from hsops.core.prompts import Prompt, shorten
from hsops.extract.server import Server

TEXTS = 64  # tokenised in one request


def settle(server: Server, prompts: Sequence[Prompt], *, file: str, name: str) -> tuple[Prompt, ...]:
    """The prompts with token ids.

    Texts become ids first and are sent as ids, so that every dump can be held against what was sent.

    Args:
        server: asked for its limits and its tokenizer.
        prompts: with ids or with text.
        file, name: of the prompts file and of the server, for faults.

    Raises:
        ConfigError: the server has no tokenizer, or prompts are too long for it.
    """
    info = server.info()
    texts = [prompt for prompt in prompts if prompt.text]
    if texts and info.get("skip_tokenizer_init"):
        message = f"{name} runs without a tokenizer (--skip-tokenizer-init)"
        faults = [Fault(file, p.line, 1, "text", message) for p in texts]
        raise ConfigError(shorten(faults), fix="give input_ids, or launch the server with its tokenizer")
    tokens = {}
    for start in range(0, len(texts), TEXTS):
        group = texts[start : start + TEXTS]
        for prompt, ids in zip(group, server.tokenize([p.text for p in group]), strict=True):
            tokens[prompt.id] = token_bytes(ids)
    settled = tuple(replace(p, tokens=tokens.get(p.id, p.tokens), text="") for p in prompts)
    faults = too_long(settled, info.get("max_req_input_len"), file=file, name=name)
    if faults:
        raise ConfigError(shorten(faults), fix="shorten them, or launch with a larger context-length")
    return settled


def too_long(prompts: Sequence[Prompt], most: object, *, file: str, name: str) -> list[Fault]:
    """Faults of prompts that SGLang's scheduler refuses: it takes fewer than ``max_req_input_len`` tokens."""
    if not isinstance(most, int):
        return []
    return [
        Fault(file, p.line, 1, "", f"{p.count:,} tokens; {name} takes fewer than {most:,}")
        for p in prompts
        if p.count >= most
    ]
