"""The user's own patches as values: what an entry of the inventory names, read and made sense of, with its identity."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hsops.core.errors import ConfigError, Fault
from hsops.core.inventory import HsDumpPatch, PatchSpec
from hsops.core.patches import DiffPatch, FilesPatch, ScriptPatch
from hsops.core.texts import a_relative_path
from hsops.deploy.diffs import FileDiff
from hsops.deploy.unified import parse

LARGEST = 32 << 20  # bytes of one patch: it travels as one request
MOST = 2000  # files of one patch

MakeFault = Callable[[tuple[str, ...], str], Fault]


@dataclass(frozen=True, slots=True)
class Parts:
    """What every kind has.

    Args:
        name: the patch's name in the inventory.
        kind: its kind.
        identity: 12 hex digits over kind, options and the bytes of its files.
        options: what the inventory says of it, without local paths.
        place: where its files lie, in the agent's words.
        label: the local file or folder, as the inventory names it.
    """

    name: str
    kind: str
    identity: str
    options: dict[str, object]
    place: str
    label: str


@dataclass(frozen=True, slots=True)
class DiffParts(Parts):
    """A diff and what it does."""

    diffs: tuple[FileDiff, ...]

    @property
    def paths(self) -> list[str]:
        """The files that it needs to see."""
        named = [path for diff in self.diffs for path in (diff.source, diff.target) if path]
        return list(dict.fromkeys(named))


@dataclass(frozen=True, slots=True)
class FilesParts(Parts):
    """Files: path -> (bytes, permission bits)."""

    files: dict[str, tuple[bytes, int]]


@dataclass(frozen=True, slots=True)
class ScriptParts(Parts):
    """A script and how it is run; the files that it may change."""

    script: bytes
    spec: ScriptPatch


def check(patches: Sequence[PatchSpec], base: Path, fault: MakeFault) -> None:
    """``read`` them all, for their faults.

    Raises:
        ConfigError: with every fault of every patch.
    """
    if faults := [one for patch in patches for one in _faults(patch, base, fault)]:
        raise ConfigError(faults)


def _faults(patch: PatchSpec, base: Path, fault: MakeFault) -> tuple[Fault, ...]:
    try:
        read(patch, base, fault)
    except ConfigError as error:
        return error.faults
    return ()


def read(patch: PatchSpec, base: Path, fault: MakeFault) -> DiffParts | FilesParts | ScriptParts:
    """What ``patch`` names.

    Args:
        patch: any kind but hs-dump.
        base: the folder of inventory.yaml: local paths are seen from it.
        fault: makes a fault of a path in the inventory, with its line.

    Raises:
        ConfigError: it is not there, too large, or not what its kind wants; every fault at once.
    """
    assert not isinstance(patch, HsDumpPatch)
    try:
        if isinstance(patch, DiffPatch):
            return _diff(patch, base)
        return _files(patch, base) if isinstance(patch, FilesPatch) else _script(patch, base)
    except _Bad as bad:
        key, message = bad.args
        raise ConfigError([fault(("patches", patch.name, key), message)]) from None


class _Bad(Exception):  # noqa: N818 - never leaves this module
    """A key of the entry, and what is wrong with what it names."""


def _diff(patch: DiffPatch, base: Path) -> DiffParts:
    text = _text(base / Path(patch.diff).expanduser(), "diff")
    options: dict[str, object] = {"kind": patch.kind, "strip": patch.strip, "root": patch.root}
    identity = _identity(options, {"": text})
    diffs = parse(text, patch.diff, patch.strip)
    return DiffParts(patch.name, patch.kind, identity, options, patch.place, patch.diff, diffs)


def _files(patch: FilesPatch, base: Path) -> FilesParts:
    source = base / Path(patch.from_).expanduser()
    found: dict[str, tuple[bytes, int]] = {}
    total = 0
    for inner, path in _walk(source):
        data, mode = _plain_file(path, "from")
        found[f"{patch.to}/{inner}" if inner else patch.to] = (data, mode)
        total += len(data)
        if total > LARGEST or len(found) > MOST:
            limits = f"{MOST:,} files or {LARGEST >> 20} MiB"
            raise _Bad("from", f"{patch.from_} holds more than {limits}: a patch is smaller")
    if not found:
        raise _Bad("from", f"there is no file in {patch.from_}")
    options: dict[str, object] = {"kind": patch.kind, "to": patch.to, "root": patch.root}
    identity = _identity(options, {f"{mode:o} {path}": data for path, (data, mode) in found.items()})
    return FilesParts(patch.name, patch.kind, identity, options, patch.place, patch.from_, found)


def _script(patch: ScriptPatch, base: Path) -> ScriptParts:
    script = _text(base / Path(patch.run).expanduser(), "run")
    options: dict[str, object] = {
        "kind": patch.kind,
        "files": list(patch.files),
        "args": list(patch.args),
        "env": dict(patch.env),
        "root": patch.root,
    }
    identity = _identity(options, {"": script})
    told = {
        **options,
        "env": sorted(patch.env),
    }  # values may be secrets: names are enough to look at, and to keep there
    return ScriptParts(patch.name, patch.kind, identity, told, patch.place, patch.run, script, patch)


def _walk(source: Path) -> Iterator[tuple[str, Path]]:
    """The files of a folder with their paths in it, in order; a file has the path ``""``."""
    if not source.is_dir():
        yield "", source
        return
    real = os.path.realpath(source)
    for folder, folders, names in os.walk(source):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted([*names, *(one for one in folders if (Path(folder) / one).is_symlink())]):
            path = Path(folder) / name
            inner = path.relative_to(source).as_posix()
            if path.is_symlink() and (path.is_dir() or not _inside(path, real)):
                raise _Bad("from", f"{inner!r} in it is a link {_led(path, real)}: hsops copies plain files only")
            try:
                inner.encode()
                yield a_relative_path(inner), path
            except ValueError as error:
                raise _Bad("from", f"{inner!r} in it cannot be named on the host: {error}") from None


def _inside(path: Path, real: str) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(real)


def _led(path: Path, real: str) -> str:
    return "to a folder" if _inside(path, real) else f"out of the folder, to {path.readlink()}"


def _text(path: Path, key: str) -> bytes:
    data, _ = _plain_file(path, key)
    if not data:
        raise _Bad(key, f"{path} is empty")
    return data


def _plain_file(path: Path, key: str) -> tuple[bytes, int]:
    """A file's bytes and permission bits; anything but a plain file could be endless, or another the next time."""
    try:
        told = path.stat()
        if not stat.S_ISREG(told.st_mode):
            raise _Bad(key, f"{path} is {'a folder' if stat.S_ISDIR(told.st_mode) else 'no plain file'}")
        if told.st_size > LARGEST:
            raise _Bad(key, f"{path} is larger than {LARGEST >> 20} MiB: a patch is smaller")
        return path.read_bytes(), told.st_mode & 0o777
    except FileNotFoundError:
        raise _Bad(key, f"there is no {path}") from None
    except OSError as error:
        raise _Bad(key, f"{path}: {error.strerror}") from None


def _identity(options: dict[str, object], parts: dict[str, bytes]) -> str:
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for name, data in sorted(parts.items()):
        digest.update(f"\0{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:12]
