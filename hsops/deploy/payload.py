"""What hs-dump puts on a host: the payload package, its configuration, and one stanza in the model registry."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hsops.core.inventory import HsDumpPatch
from hsops.payload.hsops_hs_dump.strategy import REGISTRY_FILE

PACKAGE = "hsops_hs_dump"
SOURCES = Path(__file__).parent.parent / "payload" / PACKAGE
FILE_MODE = 0o644
MARK = "# >>> hsops hs-dump "
"""Begins every stanza that ever was."""
BEGIN = f"{MARK}>>>"
BEGIN_CUT = f"{MARK}(the file had no last newline) >>>"
END = "# <<< hsops hs-dump <<<"
BODY = """\
# Put here by hsops; inert unless SGLANG_HS_DUMP_DIR is set. Undo: hsops deploy --revert
import os as _hsops_os
if _hsops_os.environ.get("SGLANG_HS_DUMP_DIR"):
    try:  # an exception here would end the server
        __import__("hsops_hs_dump").install(globals())
    except Exception as _hsops_error:
        print(f"hsops_hs_dump: NOT capturing: {_hsops_error!r}", file=__import__("sys").stderr, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Payload:
    """hs-dump with its options, ready to be put somewhere.

    Args:
        name: the patch's name in the inventory.
        identity: 12 hex digits over all bytes and options; equal for equal sources on every machine.
        options: ``boundaries`` (ascending), ``final`` and ``method``.
        files: path -> bytes; what lies in the package. Relative to its place: site-packages, or for ``hook`` hsops' own
            folder, where each identity has one.
        place: ``source`` or ``hook``.
    """

    name: str
    identity: str
    options: dict[str, object]
    files: dict[str, bytes]
    place: str = "source"


def build(patch: HsDumpPatch) -> Payload:
    """The payload for a patch of the inventory."""
    options: dict[str, object] = {
        "boundaries": list(patch.boundaries),
        "final": patch.final,
        "method": patch.method,
    }
    identity = _identity(options)
    config = json.dumps({"identity": identity, **options}, indent=1).encode() + b"\n"
    folder = PACKAGE if patch.method == "source" else f"{identity}/{PACKAGE}"
    files = {f"{folder}/{name}": data for name, data in sources().items()}
    return Payload(patch.name, identity, options, {**files, f"{folder}/config.json": config}, patch.method)


@cache
def sources() -> dict[str, bytes]:
    """The package's modules by name."""
    return {path.name: path.read_bytes() for path in sorted(SOURCES.glob("*.py"))}


def with_stanza(module: bytes) -> bytes:
    """The registry's module with the stanza at its end."""
    cut = bool(module) and not module.endswith(b"\n")
    begin = BEGIN_CUT if cut else BEGIN
    return module + f"{chr(10) if cut else ''}{begin}\n{BODY}{END}\n".encode()


def without_stanza(module: bytes) -> bytes:
    """The module as it was before ``with_stanza``, whatever the stanza of that time said; else unchanged."""
    for begin, newline in ((BEGIN, b""), (BEGIN_CUT, b"\n")):
        start = module.rfind(newline + begin.encode() + b"\n")
        end = module.find(f"\n{END}\n".encode(), start)
        if start >= 0 and end >= 0:
            return module[:start] + module[end + len(END) + 2 :]
    return module


def has_stanza(module: bytes) -> bool:
    """Somebody's hs-dump stanza is in it."""
    return without_stanza(module) != module


def _identity(options: dict[str, object]) -> str:
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for name, data in (*sources().items(), (REGISTRY_FILE, with_stanza(b""))):
        digest.update(f"\0{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:12]
