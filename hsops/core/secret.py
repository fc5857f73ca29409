"""Secrets in command lines: which they are, and what is shown in their place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

MASK = "***"
Kind = TypeVar("Kind")
_NAMED = re.compile(
    r"""(?i)(api[_-]?key["']?\s*[=:\s]\s*["']?|bearer\s+)(?!None\b)[^\s"',)]+"""
)  # SGLang logs its arguments
_FLAG = re.compile(r"(?i)--[\w-]*(api-key|token|password|secret)\Z")
_VARIABLE = re.compile(r"(?i)(api_?key|token|password|secret)\Z")


def masked(words: Sequence[str]) -> list[str]:
    """A command line for people and for JSON: the value of each flag that takes a secret is ``***``."""
    shown, hide = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        shown.append(MASK if hide else f"{name}={MASK}" if equals and _FLAG.match(name) else word)
        hide = not hide and is_secret_flag(word)
    return shown


def value_of(words: Sequence[str], flag: str) -> str:
    """What a command line gives for ``flag``, as two words or as ``--flag=value``, the last time; "" without."""
    found = ""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == flag:
            found = after
        elif word.startswith(f"{flag}="):
            found = word[len(flag) + 1 :]
    return found


def without_keys(text: str) -> str:
    """A line of a log for people: the API keys in it are ``***``."""
    return _NAMED.sub(rf"\1{MASK}", text)


def kinds_without_keys(kinds: Mapping[str, Kind]) -> dict[str, Kind]:
    """Templates of log lines without keys, and what is known of each; of those that are alike then, the first."""
    found: dict[str, Kind] = {}
    for text, known in kinds.items():
        found.setdefault(without_keys(text), known)
    return found


def is_secret_flag(word: str) -> bool:
    """The word after this one is a secret."""
    return bool(_FLAG.match(word))


def is_secret_variable(name: str) -> bool:
    """The environment variable ``name`` holds a secret."""
    return bool(_VARIABLE.search(name))
