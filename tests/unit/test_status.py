"""``hsops status`` when a host tells only a part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hsops.cli import status
from hsops.core.errors import UnreachableError
from hsops.render.status import lines


def test_a_host_that_tells_its_runs_keeps_its_rows_without_its_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stuck nvidia-smi made of it a host that could not be asked."""

    def stuck(_: Any) -> None:
        raise UnreachableError("box said nothing for 30 s", host="box")

    monkeypatch.setattr("hsops.remote.runs.list_runs", lambda _: ())
    monkeypatch.setattr("hsops.remote.orphans.orphans", stuck)
    session: Any = SimpleNamespace(agent=lambda _: None)
    spec: Any = SimpleNamespace(name="box")

    found = status._host(session, spec, everything=False)

    assert found.runs == () and found.orphans.found == () and not found.orphans.no_gpu_tool
    assert any("box said nothing for 30 s" in line for line in lines(["box"], {"box": found}, {}))
