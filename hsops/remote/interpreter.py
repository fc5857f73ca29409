"""Why an interpreter on a host did not run the agent."""

from __future__ import annotations

import re

from hsops.core.command import Command
from hsops.core.deadline import QUICK
from hsops.core.errors import AgentKilledError, RemoteError
from hsops.remote.host import Completed, Host

MINIMUM = (3, 10)
_VERSION = re.compile(r"^Python (\d+)\.(\d+)\S*")


def explain(host: Host, python: str, done: Completed) -> RemoteError:
    """Why a call brought no reply: asks the interpreter what it is."""
    if done.exit < 0:
        return AgentKilledError(f"the agent was ended by signal {-done.exit}", host=host.name, why="out of memory?")
    answer = host.run(Command((python, "--version")), deadline=QUICK)
    said = (answer.stdout + answer.stderr).decode(errors="replace").strip().splitlines()  # Python 2 says it on stderr
    if answer.exit == 127:
        return wrong_python(host, f"there is no {python}")
    if answer.exit == 126:
        return wrong_python(host, f"{python} cannot be executed")
    version = next((match for line in said if (match := _VERSION.match(line))), None)
    if not version:
        return wrong_python(host, f"{python} is not a Python: it answers --version with {said[0] if said else ''!r}")
    if (int(version[1]), int(version[2])) < MINIMUM:
        return wrong_python(host, f"{python} is {version[0]}, the agent needs 3.10 or newer")
    errors = done.stderr.decode(errors="replace").strip().splitlines()
    return RemoteError(
        f"{python} did not run the agent: {errors[-1] if errors else f'exit {done.exit}, no output'}", host=host.name
    )


def wrong_python(host: Host, message: str) -> RemoteError:
    """``hosts.<name>.python`` is not what it must be."""
    return RemoteError(
        message,
        host=host.name,
        why="the agent runs on the interpreter that runs SGLang",
        fix="set hosts.<name>.python in inventory.yaml to its absolute path on the host",
    )
