"""Evidence kept in one file, without secrets: judged again later, or by somebody else, it gives the same verdict.

A bundle is a gzipped tar of ``manifest.json`` (schema, sizes and SHA-256 of the rest), ``evidence.json`` and the log's
``head.log`` and ``tail.log``: ``tar xzf`` opens it for people. Equal evidence gives equal bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, BinaryIO

from hsops.core.errors import BadDataError
from hsops.core.runs import Run, parse_run
from hsops.core.secret import MASK, is_secret_flag
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.reading import from_log, from_nodes, from_probe

SCHEMA = "hsops-bundle/2"
_OLDER = "hsops-evidence/1"  # one JSON value, before bundles were compressed
_MANIFEST, _EVIDENCE, _HEAD, _TAIL = "manifest.json", "evidence.json", "head.log", "tail.log"
_COUNTS, _NUMBERS = re.compile(r"(?i)token(s|_)"), re.compile(r"[\d.\[\]]+\Z")
_LARGEST = 64 << 20  # bytes of one part: a log is cut to far less before it gets here
_LARGEST_WHOLE = 4 * _LARGEST
_SECRETS = re.compile(  # SGLang counts tokens ("#token: 262144", "max_total_num_tokens=65536") and has a tokenizer
    r"""(?ix) (?P<keep> (?<![#\w-]) [\w-]*(?:(?:api[_-]?key|password|secret)\w* | tokens?(?:_\w+)?)
                       (?:'|\\?")? \s*[=:]\s* (?:'|\\?")?
                       | --[\w-]*(?:api-key|token|password|secret)\s+ | bearer\s+ )
        (?P<secret> (?!None\b)[^\s'",)\\]{4,})
        | (?P<hub> \bhf_(?-i:[a-z]*[A-Z0-9])[A-Za-z0-9]{7,})"""
)


def pack(
    raw: dict[str, Any],
    *,
    run: Run | None,
    host: str,
    tp: int | None = None,
    unmoved_s: float = 0.0,
    allowed_s: float = 0.0,
) -> bytes:
    """A bundle of what a host showed.

    Args:
        raw: the evidence as the agent sent it.
        tp, unmoved_s, allowed_s: as ``from_probe`` and ``Evidence`` got them.
    """
    log = dict(raw.get("log") or {})
    texts = {_HEAD: log.pop("head", ""), _TAIL: log.pop("tail", "")}
    vouched = {"unmoved_s": unmoved_s, "allowed_s": allowed_s}
    content = {"host": host, "run": asdict(run) if run else None, "tp": tp, **vouched}
    return _packed(content | {"evidence": raw | {"log": log or None}}, texts)


def pack_nodes(
    seen: Mapping[str, tuple[Mapping[str, Any], Run | None]],
    lost: Mapping[str, str],
    *,
    tp: int | None = None,
    unmoved_s: float = 0.0,
    allowed_s: float = 0.0,
) -> bytes:
    """A bundle of what the hosts of one server showed, as ``from_nodes`` got it. The logs in it are the first one's."""
    (host, (raw, run)), *others = seen.items()
    log = dict(raw.get("log") or {})
    texts = {_HEAD: log.pop("head", ""), _TAIL: log.pop("tail", "")}
    told = [{"host": host, "run": asdict(run) if run else None, "evidence": raw} for host, (raw, run) in others]
    content = {"host": host, "run": asdict(run) if run else None, "tp": tp, "nodes": told, "lost": dict(lost)}
    vouched = {"unmoved_s": unmoved_s, "allowed_s": allowed_s}
    return _packed(content | vouched | {"evidence": {**raw, "log": log or None}}, texts)


def pack_log(data: bytes, *, path: str, lines: int, tp: int | None = None) -> bytes:
    """A bundle of a log and nothing else, as ``from_log`` gets it."""
    content = {"log_only": path, "tp": tp, "lines": lines}
    return _packed(content, {_HEAD: data.decode("utf-8", "replace"), _TAIL: ""})


def read(file: BinaryIO, *, name: str) -> Evidence:
    """As ``unpack``, of an open file. More than a bundle can be is not even read: somebody took a log for one."""
    data = file.read(_LARGEST_WHOLE + 1)
    if len(data) > _LARGEST_WHOLE:
        raise BadDataError(f"{name} is larger than any bundle", fix="for a server's log use --log")
    return unpack(data, name=name)


def unpack(data: bytes, *, name: str) -> Evidence:
    """The evidence of a bundle.

    Args:
        name: the file's, for the error.

    Raises:
        BadDataError: it is not one of ours, or not as it was written.
    """
    try:
        content = _unpacked(data, name)
        if "log_only" in content:
            text = content["log"]["head"].encode()
            return from_log(content["log_only"], text, tp=content["tp"], lines=content["lines"])
        tp, unmoved_s = content.get("tp"), content.get("unmoved_s", 0.0)
        nodes = {
            one["host"]: (one["evidence"], parse_run(one["run"]) if one["run"] else None)
            for one in (content, *content.get("nodes", ()))
        }
        if len(nodes) > 1 or content.get("lost"):
            seen = from_nodes(nodes, content["lost"], tp=tp, unmoved_s=unmoved_s)
        else:
            ((host, (raw, run)),) = nodes.items()
            seen = from_probe(raw, host=host, run=run, tp=tp, unmoved_s=unmoved_s)
        return replace(seen, allowed_s=content.get("allowed_s", 0.0))
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OSError,
        EOFError,
        OverflowError,
        RecursionError,
        tarfile.TarError,
        zlib.error,
    ) as error:
        raise BadDataError(
            f"{name} is not evidence that hsops saved ({type(error).__name__}: {error})",
            fix="hsops diagnose --save FILE makes one; for a server's log use --log",
        ) from None


def redact(value: Any) -> Any:
    """The same JSON value with what looks like a key, token or password replaced by ``***``."""
    if isinstance(value, str):
        return _SECRETS.sub(_hidden, value)
    if isinstance(value, list | tuple):
        found = [redact(item) for item in value]
        for i, item in enumerate(found[:-1]):
            if isinstance(item, str) and is_secret_flag(item):
                found[i + 1] = MASK
        return found
    if isinstance(value, dict):
        return {key: redact(item) for key, item in value.items()}
    return value


def _hidden(found: re.Match[str]) -> str:
    if found["hub"]:
        return MASK
    counts = _COUNTS.search(found["keep"]) and _NUMBERS.match(found["secret"])
    return found[0] if counts else f"{found['keep']}{MASK}"


def _packed(content: dict[str, Any], texts: dict[str, str]) -> bytes:
    parts = {_EVIDENCE: json.dumps(redact(content), indent=1).encode()}
    parts |= {name: redact(text).encode("utf-8", "replace") for name, text in texts.items()}
    files = {name: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for name, d in parts.items()}
    manifest = json.dumps({"schema": SCHEMA, "files": files}, indent=1).encode()
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", filename="", mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as tar,
    ):
        for name, data in {_MANIFEST: manifest, **parts}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o600
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _unpacked(data: bytes, name: str) -> dict[str, Any]:
    if not data.startswith(b"\x1f\x8b"):
        older: dict[str, Any] = json.loads(data)
        return _of_schema(older, _OLDER, name)
    parts = _members(data)
    listed = _of_schema(json.loads(parts[_MANIFEST]), SCHEMA, name)["files"]
    for part, facts in listed.items():
        if part not in parts or hashlib.sha256(parts[part]).hexdigest() != facts["sha256"]:
            raise BadDataError(
                f"{name}: {part} is not as hsops wrote it", why="its SHA-256 is another than the bundle's manifest says"
            )
    content: dict[str, Any] = json.loads(parts[_EVIDENCE])
    log = {"head": parts[_HEAD].decode(), "tail": parts[_TAIL].decode()}
    if "log_only" in content:
        return content | {"log": log}
    if content["evidence"].get("log"):
        content["evidence"]["log"] |= log
    return content


def _members(data: bytes) -> dict[str, bytes]:
    """The parts by name; of a stranger's archive nothing is written to disk, and no part is read past its limit."""
    found = {}
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as squeezed:
        whole = squeezed.read(_LARGEST_WHOLE)  # to its end, where its checksum stands
    with tarfile.open(fileobj=io.BytesIO(whole), mode="r:") as tar:
        for name in (_MANIFEST, _EVIDENCE, _HEAD, _TAIL):
            member = tar.getmember(name)
            file = tar.extractfile(member) if member.isreg() and member.size <= _LARGEST else None
            if file is None:
                raise ValueError(f"{name} is no file of at most {_LARGEST >> 20} MiB")
            found[name] = file.read()
    return found


def _of_schema(content: dict[str, Any], schema: str, name: str) -> dict[str, Any]:
    if content["schema"] != schema:
        raise BadDataError(
            f"{name}: schema {content['schema']!r}, expected {SCHEMA!r}",
            fix="another version of hsops wrote it: judge it with that one",
        )
    return content
