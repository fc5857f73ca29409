"""Copies of folders for a script to work on, and what is in them."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat

from hsops.agent.protocol import Refusal

LARGEST_TREE = 1 << 30  # bytes that are copied for a script


def copy_tree(root: str, scopes: list[str], to: str) -> None:
    """Copy what lies in ``scopes``, files and folders right below ``root``, without byte code; links as links.

    Raises:
        Refusal: ``too-large``.
    """
    total = 0
    for scope in scopes:
        source = os.path.realpath(os.path.join(root, scope))
        for folder, folders, names in os.walk(source):
            folders[:] = [name for name in folders if name != "__pycache__"]
            total += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
            if total > LARGEST_TREE:
                said = f"{source} is larger than {LARGEST_TREE >> 30} GiB, too much to copy for a script"
                raise Refusal("too-large", said, path=source)
        target = os.path.join(to, scope)
        if os.path.isdir(source):
            shutil.copytree(source, target, symlinks=True, ignore=_not_copied)
        elif os.path.exists(source):
            shutil.copy2(source, target)


def _not_copied(folder: str, names: list[str]) -> list[str]:
    """Byte code, and what is neither file, folder nor link."""
    kinds = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    plain = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    return [name for name, mode in kinds.items() if name == "__pycache__" or not any(is_it(mode) for is_it in plain)]


def survey(root: str) -> dict[str, tuple[str, int, str]]:
    """Every file below ``root`` but byte code: kind, permission bits, and what it holds as a digest."""
    found = {}
    for folder, folders, names in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [name for name in folders if name != "__pycache__" and name not in links]
        for name in (*names, *links):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            kind, held = "other", ""
            if stat.S_ISREG(mode):
                kind, held = "file", _digest(path, mode)
            elif stat.S_ISLNK(mode):
                kind, held = "link", os.readlink(path)
            found[os.path.relpath(path, root)] = (kind, stat.S_IMODE(mode), held)
    return found


def _digest(path: str, mode: int) -> str:
    if not mode & stat.S_IRUSR:  # the script took the right away; root may read it all the same
        os.chmod(path, mode | stat.S_IRUSR)
    digest = hashlib.blake2b()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()
