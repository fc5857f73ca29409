"""What a deploy asks of the host's lock."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hsops.core.deadline import Deadline
from hsops.core.errors import AgentError
from hsops.core.patches import ScriptPatch
from hsops.deploy import do
from hsops.deploy.parts import read
from hsops.deploy.planned import Edit, Plan
from hsops.remote.lock import SLOWEST, TTL_S, Lock, explained


@dataclass
class Asked:
    """Stands for an agent: keeps what it is asked."""

    lock_wait: float
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    deadlines: list[Deadline] = field(default_factory=list)

    def call(self, verb: str, /, *, deadline: Any, **params: Any) -> dict[str, Any]:
        self.calls.append((verb, params))
        self.deadlines.append(deadline)
        return {"files": {}, "ended": 0, "changed": []}


@pytest.mark.parametrize("wait", [0.0, 300.0])
def test_a_scripts_rehearsal_waits_as_long_as_it_is_told_and_says_why(wait: float, tmp_path: Path) -> None:
    """It may take minutes, so it is the one for which others wait: with command, what, and the user's reason."""
    (tmp_path / "s.py").write_text("pass\n")
    patch = ScriptPatch(name="hand", kind="script", run="s.py", files=("sglang/x.py",))
    wanted = read(patch, tmp_path, lambda *_: pytest.fail("no fault"))
    agent = Asked(wait)

    do.rehearse(Lock(agent, "hsops deploy", reason="for the night"), wanted)  # type: ignore[arg-type]

    ((verb, params),) = agent.calls
    assert (verb, params["lock"]["wait"], params["lock"]["command"]) == ("patch-rehearse", wait, "hsops deploy")
    assert (params["lock"]["what"], params["lock"]["reason"]) == ("hand, its script on a copy", "for the night")


def test_a_change_may_take_as_long_as_the_host_says_that_it_goes_on(tmp_path: Path) -> None:
    """Its agent tells so every two seconds, until it stands still for ten minutes; silence ends it."""
    (tmp_path / "s.py").write_text("pass\n")
    patch = ScriptPatch(name="hand", kind="script", run="s.py", files=("sglang/x.py",), timeout=600)
    planned = Plan("p", "1", {}, "absent", "", "0.5.9", ())
    agent = Asked(300.0)
    lock = Lock(agent, "hsops deploy")  # type: ignore[arg-type]

    do.apply(lock, planned)
    do.revert(lock, planned)
    do.rehearse(lock, read(patch, tmp_path, lambda *_: pytest.fail("no fault")))  # type: ignore[arg-type]

    assert [verb for verb, _ in agent.calls] == ["patch-apply", "patch-revert", "patch-rehearse"]
    assert [(one.idle, one.total) for one in agent.deadlines] == [(60.0, None)] * 3


@pytest.mark.parametrize("more", ["", "; in an emergency: hsops stop --force"])
def test_a_process_that_cannot_be_ended_has_a_way_out(more: str) -> None:
    """The refusal stays until it is gone."""
    told = explained(AgentError("its process 7 on the host cannot be ended", code="not-ended"), more)

    assert "outlives SIGKILL" in told.why and "wchan" in told.fix and told.fix.endswith(more)


def test_the_lock_is_kept_for_as_long_as_the_next_patch_may_travel() -> None:
    """Of 24 MiB, with an original of as much, on a line of a megabit a second."""
    data = b"x" * (24 << 20)
    large = Plan("b", "1", {}, "absent", "", "0.5.9", (), (Edit("m.py", data, None, data),))
    agent = Asked(0.0)
    lock = Lock(agent, "hsops deploy")  # type: ignore[arg-type]

    do.apply(lock, large, keep=True, coming=do.size(large))
    do.apply(lock, large)

    kept, last = (params["lock"] for _, params in agent.calls)
    assert kept["keep_ttl"] >= TTL_S + (48 << 20) / SLOWEST and "keep_ttl" not in last
