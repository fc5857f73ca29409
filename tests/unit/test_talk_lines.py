"""remote.talk.lines: whatever the pieces, and not without bound."""

from __future__ import annotations

from typing import Any

import pytest

from hsops.agent import patch_site
from hsops.core.errors import RemoteError
from hsops.remote import talk


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_come_whole(size: int) -> None:
    """A last one without an end is left out."""
    text = b"one\n\ntwo\nrest"
    stream: Any = [text[i : i + size] for i in range(0, len(text), size)]

    assert list(talk.lines(stream)) == [b"one", b"", b"two"]


def test_a_line_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has filled the memory; many short ones are no such line."""
    monkeypatch.setattr(talk, "LONGEST", 1000)
    endless: Any = iter(lambda: b"x" * 100, b"")
    short: Any = [b"x" * 100 + b"\n"] * 100

    assert len(list(talk.lines(short))) == 100
    with pytest.raises(RemoteError, match="not the agent"):
        list(talk.lines(endless))


def test_the_longest_answer_about_a_patch_is_no_line_without_an_end() -> None:
    """All its bytes as base64, and a megabyte of names."""
    assert talk.LONGEST > patch_site.LARGEST * 4 // 3 + (1 << 20)
