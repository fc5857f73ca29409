"""PCI bridges between GPUs, read from their configuration space: no lspci is needed."""

import os
import struct
from typing import Any

_DEVICES = "/sys/bus/pci/devices"
_BRIDGE, _DISPLAY, _NVIDIA = "0x0604", "0x03", "0x10de"
_EXTENDED, _ACS = 0x100, 0x000D
_REDIRECTS = 0b1100  # P2P Request Redirect, P2P Completion Redirect (PCI Express, 7.7.8.3)


def look(root: str = _DEVICES) -> "dict[str, Any]":
    """NVIDIA's devices, and the bridges that are in their way.

    Returns ``gpus``; ``redirecting``: bridges whose ACS sends peer-to-peer traffic through the root complex;
    ``hidden``: how many bridges' extended configuration this user may not read (only root may).
    """
    found: dict[str, Any] = {"gpus": [], "redirecting": [], "hidden": 0}
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        kind = _text(os.path.join(root, name, "class"))
        if kind.startswith(_DISPLAY) and _text(os.path.join(root, name, "vendor")) == _NVIDIA:
            found["gpus"].append(name)
        if kind.startswith(_BRIDGE):
            config = _bytes(os.path.join(root, name, "config"))
            found["hidden"] += len(config) <= _EXTENDED
            if redirects(config):
                found["redirecting"].append(name)
    return found


def redirects(config: bytes) -> bool:
    """A bridge's configuration space says that its ACS redirects requests or completions between peers."""
    at, seen = _EXTENDED, set[int]()
    while _EXTENDED <= at <= len(config) - 8 and at not in seen:
        seen.add(at)
        (header,) = struct.unpack_from("<I", config, at)
        if header & 0xFFFF == _ACS:
            (control,) = struct.unpack_from("<H", config, at + 6)
            return bool(control & _REDIRECTS)
        at = header >> 20
    return False


def _text(path: str) -> str:
    return _bytes(path).decode("ascii", "replace").strip()


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""
