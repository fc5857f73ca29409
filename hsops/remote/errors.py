"""The one door for errors of paramiko, fabric, invoke and sockets: each class becomes one of ours.

``tests/unit/test_remote_errors.py`` fails when one of those libraries grows a class that the table does not name.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

import fabric.exceptions
import invoke.exceptions
import paramiko
from paramiko.auth_strategy import AuthFailure
from paramiko.ber import BERException
from paramiko.buffered_pipe import PipeTimeout
from paramiko.hostkeys import InvalidHostKey
from paramiko.packet import NeedRekeyException
from paramiko.pkey import UnknownKeyType
from paramiko.sftp import SFTPError
from paramiko.ssh_exception import MessageOrderError, UnableToAuthenticate

from hsops.core.errors import AuthenticationError, DeadlineError, HostKeyError, HsopsError, UnreachableError
from hsops.remote.target import Target

Make = Callable[[BaseException, Target], HsopsError]


def translate(error: BaseException, target: Target) -> HsopsError:
    """Ours for theirs. The nearest base class in the table decides, never the text."""
    if isinstance(error, HsopsError):
        return error
    for kind in type(error).__mro__:
        if kind in TABLE:
            return TABLE[kind](error, target)
    raise error


def _unreachable(message: str, *, why: str = "", fix: str = "") -> Make:
    def make(error: BaseException, target: Target) -> HsopsError:
        text = message.format(t=target, error=str(error) or type(error).__name__)
        return UnreachableError(text, host=target.name, why=why, fix=fix)

    return make


def _late(_: BaseException, target: Target) -> HsopsError:
    return DeadlineError(f"{target.hostname}:{target.port} did not answer in time", host=target.name, fix=TRY)


def _refused_keys(error: BaseException, target: Target) -> HsopsError:
    tried = getattr(getattr(getattr(error, "result", None), "strategy", None), "tried", [])
    locked = [line for line in tried if line.endswith("ssh-add it")]
    return AuthenticationError(
        f"{target} accepted none of our keys",
        host=target.name,
        why="tried: " + ("; ".join(tried) or "nothing, there is no key to offer"),
        fix=f"ssh-add {locked[0].split()[0]}" if locked else f"make `ssh {target.destination}` work without a password",
    )


def _host_key(_: BaseException, target: Target) -> HsopsError:
    return HostKeyError(f"the host key of {target.key_name} is not the one that known_hosts has", host=target.name)


TRY = "is it up, and does `ssh` reach it from here?"
_lost = _unreachable("the connection to {t.hostname} was lost: {error}")
_broken = _unreachable("the SSH connection to {t.hostname}:{t.port} failed: {error}")
_foreign = _unreachable("fabric failed on {t.hostname}: {error}")

TABLE: Mapping[type[BaseException], Make] = {
    # sockets
    socket.gaierror: _unreachable("the name {t.hostname} does not resolve", fix="check `ssh:` and ~/.ssh/config"),
    UnicodeError: _unreachable("{t.hostname} cannot be a host's name: {error}", fix="check `ssh:` and ~/.ssh/config"),
    ConnectionRefusedError: _unreachable("nothing listens on {t.hostname}:{t.port}: connection refused", fix=TRY),
    TimeoutError: _late,
    EOFError: _unreachable("{t.hostname} closed the connection"),
    OSError: _unreachable("no connection to {t.hostname}:{t.port}: {error}", fix=TRY),
    # paramiko
    paramiko.SSHException: _broken,
    paramiko.AuthenticationException: _refused_keys,
    paramiko.PasswordRequiredException: _refused_keys,
    paramiko.BadAuthenticationType: _refused_keys,
    paramiko.ssh_exception.PartialAuthentication: _refused_keys,
    UnableToAuthenticate: _refused_keys,
    AuthFailure: _refused_keys,
    paramiko.ChannelException: _unreachable(
        "{t.hostname} refused another session: {error}",
        why="sshd limits the sessions of one connection (MaxSessions, 10 by default)",
        fix="run fewer hsops commands at once, or raise MaxSessions",
    ),
    paramiko.BadHostKeyException: _host_key,
    InvalidHostKey: _host_key,
    paramiko.ssh_exception.IncompatiblePeer: _unreachable("{t.hostname} and we share no SSH algorithm: {error}"),
    paramiko.ssh_exception.ProxyCommandFailure: _unreachable("the proxy to {t.hostname} failed: {error}"),
    paramiko.ssh_exception.NoValidConnectionsError: _unreachable("no connection to {t.hostname}: {error}", fix=TRY),
    paramiko.ssh_exception.CouldNotCanonicalize: _unreachable("the name {t.hostname} cannot be made canonical"),
    paramiko.ConfigParseError: _unreachable("OpenSSH's configuration cannot be read: {error}"),
    MessageOrderError: _unreachable("{t.hostname} broke the SSH protocol: {error}", why="it may be an attack"),
    UnknownKeyType: _broken,
    BERException: _broken,
    NeedRekeyException: _lost,
    PipeTimeout: _late,
    SFTPError: _broken,
    # fabric and invoke: only their connection and session code is used, yet nothing may slip through
    **dict.fromkeys(
        (
            fabric.exceptions.NothingToDo,
            fabric.exceptions.GroupException,
            fabric.exceptions.InvalidV1Env,
            invoke.exceptions.CollectionNotFound,
            invoke.exceptions.Failure,
            invoke.exceptions.UnexpectedExit,
            invoke.exceptions.CommandTimedOut,
            invoke.exceptions.AuthFailure,
            invoke.exceptions.ParseError,
            invoke.exceptions.Exit,
            invoke.exceptions.PlatformError,
            invoke.exceptions.AmbiguousEnvVar,
            invoke.exceptions.UncastableEnvVar,
            invoke.exceptions.UnknownFileType,
            invoke.exceptions.UnpicklableConfigMember,
            invoke.exceptions.ThreadException,
            invoke.exceptions.WatcherError,
            invoke.exceptions.ResponseNotAccepted,
            invoke.exceptions.SubprocessPipeError,
        ),
        _foreign,
    ),
}
