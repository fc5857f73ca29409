"""Ctrl-C while an extract waits for a server that it has started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hsops.cli import extract, launch
from hsops.core.errors import UnhealthyError
from hsops.core.events import Event, Note, ignore
from hsops.extract import place as places
from hsops.extract.lane import Lane
from hsops.extract.place import Place
from hsops.extract.plan import Capture
from hsops.render.console import Outcome

SPEC: Any = SimpleNamespace(name="s", host="h")
AGENT: Any = SimpleNamespace(host=SimpleNamespace(name="h"))
RUN: Any = SimpleNamespace(id="run1", server="s", as_json=dict)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Every launch that was asked for, with its ``replace``; each is left with Ctrl-C and its run stays."""
    asked: list[bool] = []

    def bring_up(_session: object, wish: launch.Wish) -> Outcome:
        asked.append(wish.replace)
        return launch._left(RUN)

    monkeypatch.setattr(launch, "bring_up", bring_up)
    monkeypatch.setattr(places, "alive_run", lambda *_: RUN if asked else None)
    return asked


def test_ctrl_c_ends_the_extract_and_leaves_the_server_that_loads(launched: list[bool]) -> None:
    """Not the launch alone: the next one would replace the run whose weights are being loaded."""
    told: list[Event] = []
    session: Any = SimpleNamespace(console=SimpleNamespace(emit=told.append))
    place = Place(
        "s",
        "/f",
        AGENT,
        Capture((1,), "none"),
        diagnose=lambda _: pytest.fail("nothing is wrong with it"),
        launch=lambda replace: extract._launch(session, SPEC, replace=replace),
    )
    lane = Lane(place, ignore, file="p", concurrency=1, relaunch=3, patience=1.0)

    with pytest.raises(KeyboardInterrupt):
        lane.revive(UnhealthyError("no run of s is alive"), lambda _: True)

    assert launched == [False]
    assert any(isinstance(event, Note) and "s stays, as run run1" in event.message for event in told)
