"""Files under another name while ``evict`` decides about them. What one that was killed left so gets its name back.

Who evicts holds a lock of the folder, which ends with it: whoever looks at the folder next can tell, and give back.
"""

import contextlib
import fcntl
import os
import time

ASIDE = ".hsops-evicting."  # before a file's name
PATIENCE_S = 5.0  # for a lock: who looks at the folder has it for a moment
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def left(folder: str, *, restore: bool = True) -> int:
    """How many files of a folder were left aside; with ``restore`` they have their names again."""
    try:
        handle = os.open(folder, FOLDER)
    except OSError:  # whoever wants something of the folder is told so
        return 0
    try:
        return left_in(handle, restore=restore)
    except OSError:
        return 0
    finally:
        os.close(handle)


def left_in(handle: int, *, restore: bool = True) -> int:
    """The same of an open folder, whose lock this process may have afterwards."""
    names = [name[len(ASIDE) :] for name in os.listdir(handle) if name.startswith(ASIDE)]
    try:
        if names:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # somebody is about to decide
    except OSError:  # a file system without locks
        pass
    for name in names if restore else ():
        with contextlib.suppress(OSError):
            give_name(handle, name)
    return len(names)


def hold(handle: int) -> bool:
    """Tell others that files are put aside here, until the folder is closed; several may at once.

    False: somebody has the folder for himself, and may for hours: a fetch on this host that writes to it.
    """
    until = time.monotonic() + PATIENCE_S
    while not (held := _shared(handle)) and time.monotonic() < until:
        time.sleep(0.05)
    return held


def _shared(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def give_name(handle: int, name: str) -> None:
    """Give a file that was put aside its name again, unless another file has taken it."""
    try:
        os.link(ASIDE + name, name, src_dir_fd=handle, dst_dir_fd=handle, follow_symlinks=False)
    except FileExistsError:
        pass
    except OSError:  # no hard links here, or not of another user's file
        try:
            os.lstat(name, dir_fd=handle)
        except FileNotFoundError:
            os.rename(ASIDE + name, name, src_dir_fd=handle, dst_dir_fd=handle)
            return
    os.unlink(ASIDE + name, dir_fd=handle)
