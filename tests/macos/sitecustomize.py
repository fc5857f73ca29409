"""Makes this Python's client look like macOS to hsops: on PYTHONPATH, for a child process.

What the standard library has on Linux alone is taken away, and so is /proc. typeshed tells which names those are;
``make lint`` holds the client against it by ``mypy --platform darwin``, and this against what runs.
"""

import ctypes
import fcntl
import os
import select
import socket
import sys
import sysconfig

import psutil  # noqa: F401 - it chooses its system as it loads

GONE = {
    os: (
        "memfd_create", "posix_fadvise", "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "splice",
        "eventfd", "eventfd_read", "eventfd_write", "pidfd_open", "copy_file_range", "fdatasync", "setresuid",
        "getxattr", "setxattr", "listxattr", "O_TMPFILE", "O_DIRECT", "O_NOATIME", "O_PATH", "pipe2",
        "POSIX_FADV_DONTNEED",
    ),
    socket: ("TCP_INFO", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED", "AF_NETLINK", "TCP_USER_TIMEOUT"),
    select: ("epoll",),
    fcntl: ("F_SETPIPE_SZ", "F_GETPIPE_SZ"),
}  # fmt: skip


class _Libc:
    """What libc has there: no syncfs, no prctl."""

    def __getattr__(self, name: str) -> object:
        raise AttributeError(name)


def _forbid(event: str, args: tuple[object, ...]) -> None:
    if event == "open" and isinstance(args[0], str) and args[0].startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "No such file or directory", args[0])


sysconfig.get_config_vars()  # of this build; kept, as there is no file of a Mac's
sys.platform = "darwin"
for module, names in GONE.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
fcntl.F_FULLFSYNC = 51  # type: ignore[attr-defined] # which Linux does not know: what follows is as on a network's disk
ctypes.CDLL = lambda *_args, **_kwargs: _Libc()  # type: ignore[assignment,misc]
sys.addaudithook(_forbid)
