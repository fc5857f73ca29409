"""For chat templates: OpenAI's ``role`` and ``content``, or ShareGPT's ``from`` and ``value``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SHAREGPT = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
"""Its speakers, and the roles that templates know. No ``function_call``: its value is text, not an object."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """One fault: the ``path`` to the value in the prompt, the same for people, and what is wrong."""

    path: tuple[str | int, ...]
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation.

    Args:
        value: ``{"messages": [{"role": ..., "content": ...}, ...]}``, with ``tools`` where there are some.
        faults: with any, ``value`` counts for nothing.
    """

    value: dict[str, Any]
    faults: list[Wrong] = field(default_factory=list)


def chat(key: str, turns: Any, tools: Any = None) -> Chat:
    """Read a conversation.

    Args:
        key: under which it stands, for the faults.
        turns: a list of objects; or an object of equally long lists, as datasets holds a sequence of objects.
        tools: a list of descriptions, for templates that show them to the model.
    """
    found = Chat({"messages": []})
    if isinstance(turns, dict) and turns and all(isinstance(column, list) for column in turns.values()):
        turns = [dict(zip(turns, values, strict=False)) for values in zip(*turns.values(), strict=False)]
    if not isinstance(turns, list) or not turns:
        found.faults.append(Wrong((key,), key, "empty" if turns == [] else "expected a list of messages"))
        turns = []
    for i, turn in enumerate(turns):
        said = _turn(turn)
        if isinstance(said, dict):
            found.value["messages"].append(said)
        else:
            place, message = said
            path = (key, i, place) if place else (key, i)
            found.faults.append(Wrong(path, f"{key}[{i}]{'.' if place else ''}{place}", message))
    if tools is not None:
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            found.faults.append(Wrong(("tools",), "tools", "expected a list of objects"))
        elif tools:
            found.value["tools"] = tools
    return found


def without_none(value: Any) -> Any:
    """A dataset's cell without the keys that only other rows have: Arrow gives every object all keys of all rows."""
    if isinstance(value, dict):
        return {key: without_none(one) for key, one in value.items() if one is not None}
    return [without_none(one) for one in value] if isinstance(value, list) else value


def _turn(given: Any) -> dict[str, Any] | tuple[str, str]:
    """One message; or the key of what is wrong in it, and what is."""
    if not isinstance(given, dict):
        return "", "expected an object with role and content"
    turn: dict[str, Any] = {
        k: v for k, v in given.items() if v is not None
    }  # in OpenAI's objects a null key is one left out
    if "from" in turn and "role" not in turn:
        speaker = turn.pop("from")
        if not isinstance(speaker, str) or speaker not in SHAREGPT:
            return "from", f"expected one of {', '.join(SHAREGPT)}"
        turn = {"role": SHAREGPT[speaker], "content": turn.pop("value", None), **turn}
        if not isinstance(turn["content"], str):
            return "value", "expected text"
    if not isinstance(turn.get("role"), str) or not turn["role"]:
        return "role", "expected a role such as user or assistant"
    content = turn.get("content")
    if isinstance(content, str) or (content is None and turn.get("tool_calls")) or _is_text(content):
        return turn
    return "content", "expected text"


def _is_text(content: Any) -> bool:
    """Parts, all of them text: pictures have no token ids of their own."""
    return (
        isinstance(content, list)
        and bool(content)
        and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content)
    )
