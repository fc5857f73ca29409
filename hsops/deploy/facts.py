"""What the agent found on a host, as values."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hsops.payload.hsops_hs_dump.strategy import HOOK_FLAG as FLAG


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One file there: its bytes (empty where they were not wanted), permission bits and sha256."""

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
        files: path -> ``applied``, ``original``, ``missing``, ``edited`` or ``replaced`` (by another SGLang, or
            gone with it).
    """

    state: str
    identity: str
    options: dict[str, Any]
    sglang: str
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class FileSeen:
    """What of one file must be as it was: its bytes' sha256, permission bits, owner and group."""

    sha256: str
    mode: int
    uid: int
    gid: int

    def differs(self, now: FileSeen) -> str:
        """What is different about ``now``, in words; empty: nothing."""
        if self.sha256 != now.sha256:
            return "is another"
        if self.mode != now.mode:
            return f"has mode {now.mode:04o} now, it was {self.mode:04o}"
        if (self.uid, self.gid) != (now.uid, now.gid):
            return f"belongs to {now.uid}:{now.gid} now, it was {self.uid}:{self.gid}"
        return ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a plan rests on: as long as a host looks like this the plan is right for it.

    Args:
        machine: its machine id and name, in words.
        root: the folder that the paths are relative to.
        state_dir: where the host remembers patches.
        sglang: SGLang's version.
        serial: of the host's record of the patch; None: no record.
        read: which files were asked for; ``folder/*.py`` is possible.
        files: path -> what is there; None: no file.
        applied: when the record of ``serial`` was made, by the host's clock; 0: no record.
        links: files and folders that lie elsewhere, by a link -> where.
    """

    machine: str = ""
    root: str = ""
    state_dir: str = ""
    sglang: str = ""
    serial: str | None = None
    read: tuple[str, ...] = ()
    files: dict[str, FileSeen | None] = field(default_factory=dict)
    applied: float = 0.0
    links: dict[str, str] = field(default_factory=dict)

    def expect(self, ours: Iterable[str] = ()) -> dict[str, Any] | None:
        """The same for the agent, to be checked under its lock; ``ours``: where files lie that may have changed."""
        if not self.root:
            return None
        told = asdict(self)
        return {**{name: told[name] for name in ("serial", "sglang", "read", "files", "links")}, "ours": [*ours]}

    def real(self, path: str) -> str:
        """Where a file of the place lies, by whatever link; as far as links were looked at."""
        above = [path, *(path[:i] for i in range(len(path) - 1, 0, -1) if path[i] == "/")]
        led = next((one for one in above if one in self.links), "")
        return f"{self.links[led]}{path[len(led) :]}" if led else f"{self.root}/{path}"

    def another(self, now: Seen) -> list[str]:
        """Why ``now`` is of another host, or another place of it; empty when it is the same."""
        names = {"machine": "machine", "root": "folder", "state_dir": "state_dir"}
        pairs = [(word, getattr(self, name), getattr(now, name)) for name, word in names.items()]
        return [f"{word} {there or '?'}, not {planned or '?'}" for word, planned, there in pairs if planned != there]

    def changed(self, now: Seen) -> list[str]:
        """What changed until ``now``; empty when the plan still fits."""
        told = [f"SGLang is {now.sglang or '?'} now, it was {self.sglang or '?'}"] if self.sglang != now.sglang else []
        if self.serial != now.serial:
            told.append("somebody applied or reverted the patch")
        for path in sorted(self.files.keys() | now.files.keys()):
            then, found = self.files.get(path), now.files.get(path)
            if how := then.differs(found) if then and found else "is gone" if then else "is new" if found else "":
                told.append(f"{path} {how}")
        led = [path for path in now.files.keys() | self.links if self.links.get(path) != now.links.get(path)]
        return told + [f"{path} is a link to somewhere else" for path in sorted(led)]


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
        seen: what a plan made of this rests on.
        originals: the record's files as they were before the patch, where that was asked for; None: no file.
        places: the folders that the patch is recorded in.
    """

    version: str
    site: str
    recorded: Recorded
    files: dict[str, FileFacts | None]
    owners: dict[str, str]
    unwritable: str
    hooks: bool = True
    seen: Seen = Seen()
    originals: Mapping[str, FileFacts | None] = field(default_factory=dict)
    places: tuple[str, ...] = ()

    @property
    def root(self) -> str:
        """The folder that ``files`` is relative to."""
        return self.seen.root

    def content(self, path: str) -> bytes:
        """A file's bytes; empty when it is not there."""
        found = self.files.get(path)
        return found.content if found else b""


def parse(raw: dict[str, Any], patch: str, read: Sequence[str] = ()) -> Facts:
    """The facts about ``patch`` in the result of ``patch-inspect``; ``read``: the files that it was asked for."""
    told = raw["patches"][patch]
    return Facts(
        version=raw["sglang"]["version"] or "",
        site=raw["sglang"]["site"] or "",
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
        seen=Seen(
            machine=" ".join(filter(None, (raw["machine"]["name"], raw["machine"]["id"]))),
            root=raw["root"],
            state_dir=raw["state_dir"],
            sglang=raw["sglang"]["version"] or "",
            serial=told.get("serial"),
            applied=told.get("applied", 0.0),
            read=tuple(read),
            files={path: found and _seen(found) for path, found in raw["files"].items()},
            links=raw["links"],
        ),
        originals={path: _file(found) for path, found in told["originals"].items()},
        places=tuple(raw["places"][patch]),
    )


def _seen(raw: dict[str, Any]) -> FileSeen:
    return FileSeen(raw["sha256"], raw["mode"], raw["uid"], raw["gid"])


def _file(raw: dict[str, Any] | None) -> FileFacts | None:
    return FileFacts(base64.b64decode(raw["content_b64"]), raw["mode"], raw["sha256"]) if raw else None
