"""Whether a server that ended is started again."""

from __future__ import annotations

from typing import Any

import pytest

from hsops.agent.restart import decide

POLICY = {"max": 3, "window": 600.0, "backoff": 5.0}
KILLED = {"code": None, "signal": "SIGKILL"}


def state(exit_: dict[str, Any] = KILLED, *, served: bool = True, restarts: tuple[float, ...] = ()) -> dict[str, Any]:
    return {"exit": exit_, "served": served, "restarts": list(restarts)}


@pytest.mark.parametrize("exit_", [KILLED, {"code": 1, "signal": ""}, {"code": None, "signal": ""}])
def test_a_failure_is_followed_by_another_attempt(exit_: dict[str, Any]) -> None:
    """Also one that nobody saw the end of."""
    assert decide(POLICY, state(exit_), now=1000.0) == (5.0, "")


def test_each_further_pause_is_twice_as_long_and_there_is_an_end() -> None:
    """Restarts that lie outside the window do not count."""
    before = (100.0, 900.0, 950.0)

    assert decide(POLICY, state(restarts=before), now=1000.0) == (20.0, "")
    assert decide(POLICY, state(restarts=(*before, 990.0)), now=1000.0)[0] is None
    assert "3 times within 600 s" in decide(POLICY, state(restarts=(*before, 990.0)), now=1000.0)[1]
    assert decide({**POLICY, "max": 99}, state(restarts=tuple(range(990, 1000))), now=1000.0) == (300.0, "")


@pytest.mark.parametrize(
    "ended,why",
    [
        (state({"code": 0, "signal": ""}), "ended well"),
        (state({"code": None, "signal": "SIGTERM"}), "somebody"),
        (state({"code": 2, "signal": ""}), "command line"),
        (state({"code": 127, "signal": ""}), "command line"),
        (state(served=False), "never listened"),
    ],
)
def test_what_would_fail_again_or_was_meant_is_left(ended: dict[str, Any], why: str) -> None:
    """And the reason is told."""
    pause, said = decide(POLICY, ended, now=1000.0)

    assert pause is None and why in said


def test_without_a_policy_nothing_is_started_again() -> None:
    """And there is nothing to explain."""
    assert decide({}, state(), now=1000.0) == (None, "")
