"""Searches for garbage."""

import gc

import pytest

from hsops.core.garbage import seldom_sought


def test_it_is_sought_as_before_on_every_way_out() -> None:
    """A command that goes on for hours after a fetch keeps its memory small."""
    before = gc.get_threshold()

    with seldom_sought():
        meanwhile = gc.get_threshold()
    with pytest.raises(KeyboardInterrupt), seldom_sought():
        raise KeyboardInterrupt

    assert meanwhile[0] > before[0]
    assert gc.get_threshold() == before
