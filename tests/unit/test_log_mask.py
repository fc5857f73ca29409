"""A log without its keys."""

from __future__ import annotations

import pytest

from hsops.core.log_mask import LogMask

KEY = "sk-0123456789"
LOG = (
    b"[2026-11-29 17:44:00] server_args=ServerArgs(tp_size=2, api_key='sk-0123456789', x=1)\n"
    b"\rLoading:  50%|#####     | 1/2\rLoading: 100%|##########| 2/2\r\n"
    b"\xff\xfe not UTF-8\n"
    b"GET / Authorization: Bearer other-key\n"
    b"somebody said sk-0123456789 aloud; bear with me, my api"
)
SHOWN = LOG.replace(b"sk-0123456789", b"***").replace(b"other-key", b"***")


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_keys_are_masked_wherever_the_pieces_are_cut(size: int) -> None:
    """And every other byte comes through as it is."""
    mask = LogMask((KEY, ""))

    shown = b"".join(mask.feed(LOG[at : at + size]) for at in range(0, len(LOG), size)) + mask.tail()

    assert shown == SHOWN


def test_only_what_may_be_a_key_is_held_back() -> None:
    """A line of dots grows before one's eyes; one that may still name a key waits for its end."""
    mask = LogMask((KEY,))

    assert mask.feed(b"loading ....") == b"loading ...."
    assert mask.feed(b" ap") == b"" and mask.feed(b"ple") == b" apple"
    assert mask.feed(b" sk-0123") == b"" and mask.feed(b"4567") == b"" and mask.feed(b"89\n") == b" ***\n"


def test_a_short_key_does_not_blacken_the_log() -> None:
    """``--api-key test``: masked where it is named, not in every word that holds it."""
    mask = LogMask(("test",))

    assert mask.feed(b"api_key='test'\nlatest\n") == b"api_key='***'\nlatest\n"
