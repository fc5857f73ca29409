"""Watch a server that is well, until it shows no sign of life: a canary of one token, and what its log says.

SGLang's own watchdog ends a hung server after 300 to 450 seconds, and the evidence with it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from hsops.core.deadline import Deadline
from hsops.core.errors import HsopsError
from hsops.core.events import Emit, Note
from hsops.core.runs import Run
from hsops.remote.agent import Agent
from hsops.remote.reattach import Retry, reattaching

SILENCE_S = 30.0
EVERY_S, PATIENCE_S = 5.0, 5.0
_WORK = re.compile(r'(Prefill|Decode) batch|"POST /[^"]*" 200')
_DEADLINE = Deadline(idle=30.0, total=30.0)


@dataclass(frozen=True, slots=True)
class Heart:
    """What is known of a server's life. Times by the watcher's clock, in seconds.

    Args:
        last: of the last sign of life; None before the first.
        alive: launch_server is there.
        said: what the last canary was told.
    """

    last: float | None = None
    alive: bool = True
    said: str = ""

    def after(self, pulse: dict[str, Any], now: float) -> Heart:
        """With one more pulse. A token is a sign of life, and so is a line of a batch or of an answer.

        Other lines are not: a hung server complains of our own canaries.
        Silence is counted from the first token on: before that a server starts, which is for ``hsops launch`` to watch.
        """
        answer = pulse["health"]
        said = str(answer.get("status") or answer.get("error"))
        lives = answer.get("status") == 200
        spoke = self.last is not None and bool(_WORK.search(pulse["text"]))
        return Heart(now if lives or spoke else self.last, pulse["alive"], said)

    def silent_s(self, now: float) -> float:
        """Seconds without a sign of life; 0 before the first."""
        return now - self.last if self.last is not None else 0.0


def wait_for_silence(
    agent: Agent,
    run: Run,
    *,
    silence_s: float = SILENCE_S,
    emit: Emit,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Heart:
    """Return when the server has given no sign of life for ``silence_s``, or is gone. A lost link is no silence.

    Raises:
        HsopsError: the host cannot be reached for an hour, or refuses.
    """
    heart, told = Heart(), False

    def lost(error: HsopsError, wait: float) -> None:
        nonlocal heart
        heart = Heart(now() if heart.last is not None else None)  # nobody has looked: silence counts from here
        emit(Note(f"{error.message}; again in {wait:.0f} s", agent.host.name, "warn"))

    for pulse in reattaching(lambda: _pulses(agent, run, pause), Retry(), lost, pause=pause, now=now):
        before, heart = heart, heart.after(pulse, now())
        if before.last is None and heart.last is not None:
            emit(
                Note(f"run {run.id} lives; a diagnosis follows {silence_s:g} s without a sign of life", agent.host.name)
            )
        silent = heart.silent_s(now())
        if not heart.alive or silent >= silence_s:
            return heart
        if (silent > 0) != told:
            told = silent > 0
            words = f"no sign of life for {silent:.0f} s; the canary says {heart.said}" if told else "it lives again"
            emit(Note(words, agent.host.name, "warn" if told else "info"))
    return heart


def _pulses(agent: Agent, run: Run, pause: Callable[[float], None]) -> Generator[dict[str, Any], None, None]:
    end = -1
    while True:
        pulse = agent.call(
            "pulse", deadline=_DEADLINE, pid=run.pid, port=run.port, log=run.log, since=end, patience_s=PATIENCE_S
        )
        end = pulse["end"]
        yield pulse
        pause(EVERY_S if pulse["health"].get("status") == 200 else 1.0)
