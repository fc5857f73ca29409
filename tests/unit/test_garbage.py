"""Searches for garbage."""

import gc

import pytest

from hsops.core.garbage import seldom_sought


def test_it_is_sought_as_before_on_every_way_out() -> None:
    """A command that goes on for hours after a fetch keeps its memory small."""
    before = gc.get_threshold()

    with pytest.raises(KeyboardInterrupt), seldom_sought():
        assert gc.get_threshold()[0] > before[0]
        raise KeyboardInterrupt

    assert gc.get_threshold() == before
