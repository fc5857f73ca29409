"""Texts and conversations to token ids, on the host, through the model's own tokenizer: hsops sends this to the
interpreter that runs SGLang (``python -c``). It knows no hsops.

One line of JSON comes, one goes: first the tokenizer to load, then batches. What remote code prints goes to stderr.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

GENERATION = re.compile(r"\{%-?\s*generation\b")  # the template itself says what the assistant's tokens are
Span = tuple[int, int]
Turn = dict[str, Any]


class Refused(Exception):  # noqa: N818 - as of the agent
    """A conversation whose assistant's tokens cannot be told."""


def load(wanted: dict[str, Any]) -> Any:
    """The tokenizer as SGLang loads it."""
    if wanted["template"] and not wanted["template"].endswith(".jinja"):
        raise Refused(f"the server's chat-template {wanted['template']} is SGLang's own, not the tokenizer's")
    from transformers import AutoTokenizer

    options = {"use_fast": False} if wanted["mode"] == "slow" else {}
    if wanted["revision"]:
        options["revision"] = wanted["revision"]
    tokenizer = AutoTokenizer.from_pretrained(wanted["path"], trust_remote_code=wanted["trust"], **options)
    if wanted["template"]:
        with open(wanted["template"], encoding="utf-8") as file:
            tokenizer.chat_template = file.read().strip("\n").replace("\\n", "\n")  # as SGLang reads it
    return tokenizer


def chat(tokenizer: Any, messages: "list[Turn]", tools: "list[Any] | None") -> "tuple[list[int], list[int]]":
    """Token ids of a conversation, and for each 1 where the assistant speaks: from behind its header to the end of its
    turn, the token that ends it included.

    Raises:
        Refused: that cannot be told for certain.
    """

    def render(turns: "list[Turn]", *, reply: bool = False) -> str:
        text = tokenizer.apply_chat_template(turns, tools=tools, tokenize=False, add_generation_prompt=reply)
        return str(text)

    if GENERATION.search(str(tokenizer.chat_template)):
        found = marked(tokenizer, messages, tools)
        if found:
            return found
    text = render(messages)
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    mask = [0] * len(ids)
    for i, begin, end in spans(messages, render, text):
        first = tokens_before(tokenizer, text, ids, begin, i)
        last = tokens_before(tokenizer, text, ids, without_space(tokenizer, text, begin, end), i)
        mask[first:last] = [1] * (last - first)
    return ids, mask


def marked(tokenizer: Any, messages: "list[Turn]", tools: "list[Any] | None") -> "tuple[list[int], list[int]] | None":
    """By the template's own marks; None where the tokenizer cannot say (one without offsets), or they mark nothing."""
    try:
        found = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, mask = list(found["input_ids"]), [int(bit) for bit in found["assistant_masks"]]
    except (ValueError, NotImplementedError, KeyError, TypeError):
        return None
    silent = any(turn["role"] == "assistant" for turn in messages) and not any(mask)
    return None if silent or len(ids) != len(mask) else (ids, mask)


def spans(messages: "list[Turn]", render: Callable[..., str], text: str) -> "Iterator[tuple[int, int, int]]":
    """Of each turn of the assistant: its number, and where in the text it begins and ends.

    It begins where the template asks for a reply to the turns before, and ends where it ends when it is the last. Each
    of these must be how the whole text begins. A template that shows earlier turns otherwise than the last one (without
    their thoughts) passes where the words and what ends them stand right behind the beginning.
    """
    for i, turn in enumerate(messages):
        if turn["role"] != "assistant":
            continue
        before, after = render(messages[:i], reply=True), render(messages[: i + 1])
        if not text.startswith(before) or not after.startswith(before):
            raise Refused(f"messages[{i}]: what the template renders before it is not how the whole begins")
        if before == render(messages[:i]) and not begins_with(turn.get("content"), after[len(before) :]):
            raise Refused(f"messages[{i}]: the template asks for no reply, and writes something before its words")
        if text.startswith(after):
            yield i, len(before), len(after)
            continue
        ends = [end for end in as_history(turn.get("content"), after) if text.startswith(end, len(before))]
        if not ends:
            raise Refused(f"messages[{i}]: the template renders it otherwise in the whole than up to there")
        yield i, len(before), len(before) + len(ends[0])


def begins_with(content: Any, rendered: str) -> bool:
    """The words of a turn stand at the beginning."""
    return isinstance(content, str) and bool(content.strip()) and rendered.lstrip().startswith(content.strip())


def as_history(content: Any, rendered: str) -> "Iterator[str]":
    """A turn's words with what ends it in ``rendered``, where it is the last; with its thoughts and without."""
    if isinstance(content, str):
        for words in (content.strip(), content.split("</think>")[-1].strip()):
            if words and words in rendered:
                yield rendered[rendered.rindex(words) :]


def without_space(tokenizer: Any, text: str, begin: int, end: int) -> int:
    """The end of a turn without the line break that templates write behind the token that ends it."""
    said = text[begin:end].rstrip()
    known = [str(token) for token in tokenizer.all_special_tokens]
    known += [str(token) for token in getattr(tokenizer, "added_tokens_decoder", {}).values()]
    return begin + len(said) if any(token and said.endswith(token) for token in known) else end


def tokens_before(tokenizer: Any, text: str, ids: "list[int]", at: int, i: int) -> int:
    """How many tokens the first ``at`` characters have, if they are how the whole begins."""
    if at == len(text):
        return len(ids)
    before = list(tokenizer(text[:at], add_special_tokens=False)["input_ids"])
    if ids[: len(before)] != before:
        raise Refused(f"messages[{i}]: a token stands across its border")
    return len(before)


def answer(tokenizer: Any, kind: str, value: Any) -> "dict[str, Any]":
    """One prompt's ``ids``, and ``mask`` of a conversation; or its ``error``."""
    try:
        if kind == "text":
            return {"ids": list(tokenizer.encode(value))}
        ids, mask = chat(tokenizer, value["messages"], value.get("tools"))
        return {"ids": ids, "mask": "".join(map(str, mask))}
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        return {"error": said(error)}


def said(error: Exception) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())[:400]
    return text if isinstance(error, Refused) else f"{type(error).__name__}: {text}"


def main() -> None:
    """Answer until there is no more input."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(value: Any) -> None:
        out.write(json.dumps({"hsops": value}) + "\n")
        out.flush()

    wanted = json.loads(sys.stdin.buffer.readline())
    os.environ.update(
        {"TOKENIZERS_PARALLELISM": "false", **wanted["env"], "CUDA_VISIBLE_DEVICES": ""}
    )  # no GPU's memory
    try:
        tokenizer = load(wanted)
    except Exception as error:  # noqa: BLE001 - so may a tokenizer's own code
        tell({"error": said(error)})
        return
    tell({"template": bool(getattr(tokenizer, "chat_template", None))})
    for line in sys.stdin.buffer:
        tell([answer(tokenizer, kind, value) for kind, value in json.loads(line)])


if __name__ == "__main__":
    main()
