"""What the agent found on a host, as values."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from hsops.payload.hsops_hs_dump.strategy import HOOK_FLAG as FLAG


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One file there: its bytes, permission bits and sha256."""

    content: bytes
    mode: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the host's record of a patch says, held against the files.

    Args:
        state: ``absent``, ``applied``, ``partial`` or ``foreign``.
        identity: of what was applied; empty when absent.
        options: of what was applied.
        sglang: SGLang's version at that time.
        files: path -> ``applied``, ``original``, ``missing``, ``edited`` or ``replaced`` (by another SGLang).
    """

    state: str
    identity: str
    options: dict[str, Any]
    sglang: str
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class Facts:
    """One host as a patch sees it.

    Args:
        version: SGLang's version; empty when it does not tell.
        site: the folder that ``sglang`` lies in.
        recorded: the host's record of the patch.
        files: path relative to ``site`` -> what is there; None: no file.
        owners: path -> the patch that changed it.
        unwritable: why the files cannot be changed; empty when they can.
        hooks: its command line has ``--forward-hooks``.
    """

    version: str
    site: str
    recorded: Recorded
    files: dict[str, FileFacts | None]
    owners: dict[str, str]
    unwritable: str
    hooks: bool = True

    def content(self, path: str) -> bytes:
        """A file's bytes; empty when it is not there."""
        found = self.files.get(path)
        return found.content if found else b""


def parse(raw: dict[str, Any], patch: str) -> Facts:
    """The facts about ``patch`` in the result of ``patch-inspect``."""
    told = raw["patches"][patch]
    return Facts(
        version=raw["sglang"]["version"] or "",
        site=raw["sglang"]["site"],
        recorded=Recorded(
            state=told["state"],
            identity=told["identity"] or "",
            options=told["options"] or {},
            sglang=told.get("sglang") or "",
            files=told["files"],
        ),
        files={path: _file(found) for path, found in raw["files"].items()},
        owners=raw["owners"],
        unwritable=raw["unwritable"],
        hooks=raw["flags"].get(FLAG, False),
    )


def _file(raw: dict[str, Any] | None) -> FileFacts | None:
    return FileFacts(base64.b64decode(raw["content_b64"]), raw["mode"], raw["sha256"]) if raw else None
