"""What every host does the same way, in terms of its ``stream``."""

from __future__ import annotations

from hsops.core.command import Command
from hsops.core.deadline import Deadline
from hsops.core.errors import RemoteError
from hsops.remote.host import Completed, Host
from hsops.remote.shell import put_file


def run(host: Host, command: Command, stdin: bytes, deadline: Deadline) -> Completed:
    """``Host.run``."""
    with host.stream(command, stdin=stdin, deadline=deadline) as stream:
        stdout = b"".join(stream)
        done = stream.finish()
    return Completed(done.exit, stdout, done.stderr)


def put(host: Host, data: bytes, path: str, mode: int, deadline: Deadline) -> None:
    """``Host.put``."""
    done = run(host, put_file(path, len(data), mode), data, deadline)
    if done.exit != 0:
        raise RemoteError(said(done.stderr, path), host=host.name)


def said(stderr: bytes, path: str) -> str:
    """Why a file could not be written, in the shell's last words."""
    words = stderr.decode(errors="replace").strip().splitlines()
    return f"cannot write {path}: {words[-1] if words else 'no reason was given'}"
