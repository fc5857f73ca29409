"""Why a command never began: the login shell, or the host's exec prefix, did not run the script."""

from __future__ import annotations

import shlex
import signal

from hsops.core.errors import DeadlineError, RemoteError, UnreachableError

_VIA = "hosts.<name>.via in inventory.yaml stands before every command on this host"


class NotBegunError(DeadlineError):
    """The deadline came before the host's exec prefix had begun the command."""


def not_started(host: str, noise: bytes, stderr: bytes | bytearray, via: tuple[str, ...] = ()) -> RemoteError:
    """It ended without running our script: ``nologin``, a forced command, a container that is not there.

    Args:
        host: its name.
        noise, stderr: what came instead of the mark.
        via: the host's exec prefix, if it has one.
    """
    lines = [line for line in (noise + b"\n" + stderr).decode(errors="replace").splitlines() if line.strip()]
    said = lines[-1].strip() if lines else "it said nothing"
    if via:
        return RemoteError(
            f"`{shlex.join(via)}` did not run the command: {said}", host=host, why=_VIA, fix=_try_by_hand(via)
        )
    return RemoteError(
        f"the login shell on the host did not run the command: {said}",
        host=host,
        why="hsops runs `/bin/sh` through the login shell of the SSH user",
        fix="log in by hand and see what the shell does: ssh HOST /bin/sh -c true",
    )


def killed_early(host: str) -> UnreachableError:
    """A signal ended the host's side of it before the script began: the memory ran out, or somebody ended sessions."""
    return UnreachableError(
        "the host's shell was killed before it ran the command",
        host=host,
        why="a signal ended it: the OOM killer's, or that of somebody who ends sessions there",
        fix="run the command again: nothing of it was done",
    )


def killed_here(host: str, program: str, number: int) -> UnreachableError:
    """A signal ended our own child, OpenSSH's client or a local host's shell, before the script began."""
    return UnreachableError(
        f"{program} was ended by {signal.Signals(number).name} before the command began",
        host=host,
        why="that is a process of this machine: its memory ran out, or somebody ended it",
        fix="run the command again: nothing of it was done",
    )


def late(error: DeadlineError, via: tuple[str, ...], *, started: bool) -> DeadlineError:
    """The same error; it names a prefix that has not begun the command, because it waits for a password for example."""
    if started or not via:
        return error
    said = f"`{shlex.join(via)}` did not begin: {error.message}"
    return NotBegunError(said, host=error.host, why=_VIA, fix=_try_by_hand(via))


def _try_by_hand(via: tuple[str, ...]) -> str:
    return f"try it on the host: echo hello | {shlex.join((*via, '/bin/sh', '-c', 'cat'))}"
