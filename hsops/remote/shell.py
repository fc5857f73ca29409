"""How a command is put to a host: inside a small shell script, the same over SSH, OpenSSH's client and here.

The script gives three promises that a bare ``ssh HOST COMMAND`` does not:

- The command ends when the client leaves or dies: end of file on the channel's standard input ends its process group.
  (sshd itself only signals commands that have a terminal.) What must outlive the call starts a session of its own.
- Standard input is closed after the bytes that the command was given, while the channel's own input stays open. To a
  command that is talked with it stays open as long as the channel's.
- A line with a mark precedes the command's output, so that what a login shell's start-up files print is told apart.
- The same mark follows its errors when it has ended, so that a status is told from the end of the connection: OpenSSH's
  client gives 255 for both.

Behind an exec prefix (``docker exec -i NAME``) the whole script runs in there: it passes the end of its input on, no
signal. The mark is then the first line of input too, and only its arrival begins anything: a prefix that lets no
input through is told as what it is.

The command stays in the process group that sshd (or ``start_new_session``) made, and is its own process: ``exec``.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass

from hsops.core.command import Command, quote

GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL for a command whose client has left."""

_DECODE = 'eval "$(printf %b "$1")"'
_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b"'\\!")

# $1 bytes of input (empty: all that comes), $2 the mark, $3 the command, $4 the grace, $5 not empty: there is a prefix.
# The first half of the pipe feeds
# the command, then waits for the client to leave. The shells' own remarks ("Killed") go nowhere: stderr is the
# command's alone.
_SCRIPT = """\
[ -n "$HOME" ] || export HOME="$(getent passwd "$(id -u)" | cut -d: -f6)"
[ -z "$5" ] || { read -r got && [ "$got" = "$2" ]; } || { echo "it lets no standard input through" >&2; exit 1; }
printf '%s\\n' "$2"
exec 3>&2 2>/dev/null
trap : TERM
/bin/sh -c '
  echo $$
  if [ "$1" ]; then head -c "$1"; else cat; fi
  exec >&-
  while read -r _; do :; done
  trap "" TERM
  kill -TERM 0
  sleep "$2"
  kill -KILL 0
' feed "$1" "$4" 3>&- | {
  trap ended=1 TERM
  read -r feed
  ( eval "exec $3" ) 2>&3 3>&-
  status=$?
  kill -KILL "$feed"
  [ -z "$ended" ] || kill -KILL 0
  printf '%s\\n' "$2" >&3
  exit $status
}
"""

# $1 the path, $2 the mode, $3 the size: input that ends early must not become the file.
_PUT = """\
umask 077
folder=$(dirname -- "$1")
mkdir -p -- "$folder" || exit 1
part="$folder/.$(basename -- "$1").$$.part"
trap 'rm -f -- "$part"' EXIT
trap 'exit 143' TERM
cat >"$part" || exit 1
[ "$(wc -c <"$part")" -eq "$3" ] || { echo "the data was cut short" >&2; exit 1; }
chmod -- "$2" "$part" || exit 1
sync -- "$part" 2>/dev/null || sync
mv -f -- "$part" "$1" || exit 1
sync -- "$folder" 2>/dev/null || sync
"""


MISSING, STORED = b"hsops-missing", b"hsops-stored"
NOT_STORED = 122  # no agent verb and no interpreter exits so: 0 and 1 are ours, 2 Python's, 126 and up the shell's

# $1 the path, $2 its size, $3 its mode, $4 _PUT, then the command
_WITH_FILE = f"""\
[ "$(wc -c 2>/dev/null <"$1")" -eq "$2" ] 2>/dev/null || {{
  read -r _ || exit {NOT_STORED}
  echo {MISSING.decode()}
  head -c "$2" | /bin/sh -c "$4" put "$1" "$3" "$2" || exit {NOT_STORED}
  echo {STORED.decode()}
}}
shift 4
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A command in its script.

    Args:
        argv: the prefix and the script, for a child process.
        mark: the line before the command's output and after its errors.
        stdin: what the channel is given.
        via: the prefix.
    """

    argv: tuple[str, ...]
    mark: bytes
    stdin: bytes = b""
    via: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The same for a login shell of any kind.

        csh takes no newline and no ``!`` in quotes, fish unescapes backslashes there: a POSIX shell gets the command in
        octal where it is not plain.
        """
        words = " ".join(quote(word) for word in self.argv)
        return f"exec /bin/sh -c {shlex.quote(_DECODE)} hsops '{_octal('exec ' + words)}'"


def wrap(command: Command, stdin: bytes = b"", *, talk: bool = False, via: tuple[str, ...] = ()) -> Envelope:
    """``command`` in its script, to be fed ``stdin``; with ``talk`` all that will be said.

    Args:
        via: the host's exec prefix; a leading ``~/`` of its words is the home of the SSH user.
    """
    mark = f"hsops-{os.urandom(8).hex()}"
    size, prefixed = "" if talk else str(len(stdin)), "1" if via else ""
    argv = (*via, "/bin/sh", "-c", _SCRIPT, "hsops", size, mark, command.shell(), f"{GRACE:g}", prefixed)
    line = mark.encode() + b"\n"
    return Envelope(argv, line, line + stdin if via else stdin, via)


def _octal(text: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"\\0{byte:03o}" for byte in text.encode())


def put_file(path: str, size: int, mode: int) -> Command:
    """Write standard input to ``path``: whole or not at all, durable, parent folders with mode 0700."""
    return Command(("/bin/sh", "-c", _PUT, "put", path, f"{mode:o}", str(size)))


def with_file(path: str, size: int, mode: int, command: Command) -> Command:
    """``command``, after a file that it needs has been asked for if there is none of that size.

    To be talked with: where the file is missing, it takes a line (a question that came too early), says ``MISSING``,
    reads ``size`` bytes and says ``STORED``. It ends with ``NOT_STORED`` where the file cannot be written.
    """
    return Command(("/bin/sh", "-c", _WITH_FILE, "sh", path, str(size), f"{mode:o}", _PUT, *command.argv))


def exit_status(code: int) -> int:
    """A shell's status as ``Completed.exit``: 128 + n, which is how a shell tells of signal n, becomes -n."""
    return 128 - code if 128 < code <= 128 + 64 else code


def ended(stderr: bytes | bytearray, mark: bytes) -> tuple[bytes, bool]:
    """The command's own stderr, and whether it is known to have ended."""
    own, found, late = bytes(stderr).rpartition(mark)
    return (own + late, True) if found else (late, False)


class Prologue:
    """Takes the mark, and what came before it, off the front of a command's output."""

    LIMIT = 1 << 20

    def __init__(self, mark: bytes) -> None:
        self._mark, self.noise, self.over = mark, b"", False

    def strip(self, data: bytes) -> bytes:
        """The part of ``data`` that the command wrote."""
        if self.over:
            return data
        self.noise += data
        before, found, after = self.noise.partition(self._mark)
        if found:
            self.noise, self.over = before, True
        elif len(self.noise) > self.LIMIT:
            self.noise = self.noise[-self.LIMIT :]
        return after
