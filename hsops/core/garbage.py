"""Python's search for garbage in circles: it goes through what was made, and of a million values all will stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_SELDOM = 500_000  # values made and not dropped since the last search


@contextmanager
def seldom_sought() -> Iterator[None]:
    """Search seldom meanwhile."""
    before = gc.get_threshold()
    gc.set_threshold(_SELDOM, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
