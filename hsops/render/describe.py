"""A feature's own events as lines for people. ``render/<feature>.py`` registers how; unregistered events stay silent.

::

    @describe.register
    def _(event: StepStarted) -> Iterable[str]:
        yield f"[{event.number}/{event.total}] {event.command}"

A command imports its ``hsops.render.<feature>`` inside its body, which registers.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch

from hsops.core.events import Event, Note


@singledispatch
def describe(_event: Event) -> Iterable[str]:
    """The lines of one event; none by default."""
    return ()


@describe.register
def _(event: Note) -> Iterable[str]:
    where = f"{event.host}: " if event.host else ""
    yield f"{where}{'warning: ' if event.level == 'warn' else ''}{event.message}"
