"""An exec prefix: the words that stand before every command on a host, such as ``docker exec -i NAME``."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from hsops.core.names import Plain

_CONTAINERS = ("docker", "podman", "nerdctl", "kubectl")


def _a_prefix(words: tuple[str, ...]) -> tuple[str, ...]:
    """What is known to fail at every command is told with its place in the file, before any host is asked."""
    shown = list(words)
    if not all(words):
        raise ValueError(f"{shown!r} has an empty word")
    if words and words[0].rpartition("/")[2] in _CONTAINERS:
        given = [word for word in words[1:] if word.startswith("-")]
        if any(word == "--tty" or re.fullmatch(r"-i?ti?", word) for word in given):
            raise ValueError(f"{shown!r} asks for a terminal, which hsops has none of: '-i' without '-t'")
        if not {"-i", "--interactive"} & set(given):
            raise ValueError(f"{shown!r} lets no input through: add '-i'")
        if words[0].endswith("kubectl") and words[-1] != "--":
            raise ValueError(f"{shown!r} must end with '--', or kubectl takes hsops' options for its own")
    return words


Prefix = Annotated[tuple[Plain, ...], Field(strict=False), AfterValidator(_a_prefix)]
