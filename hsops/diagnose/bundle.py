"""Evidence kept in a file, without secrets: judged again later, or by somebody else, it gives the same verdict."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

from hsops.core.errors import BadDataError
from hsops.core.runs import Run, parse_run
from hsops.core.secret import MASK, is_secret_flag
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.reading import from_probe

SCHEMA = "hsops-evidence/1"
_SECRETS = re.compile(
    r"""(?ix) (?P<keep> [\w-]*(?:api[_-]?key|token|password|secret)\w* (?:'|\\?")? \s*[=:]\s* (?:'|\\?")? | bearer\s+ )
        (?P<secret> (?!None\b)[^\s'",)\\]{4,}) | (?P<hub> \bhf_[A-Za-z0-9]{8,})"""
)


def pack(raw: dict[str, Any], *, run: Run | None, host: str) -> bytes:
    """A file's content. ``raw``: the evidence as the agent sent it."""
    content = {"schema": SCHEMA, "host": host, "run": asdict(run) if run else None, "evidence": raw}
    return json.dumps(redact(content), indent=1).encode()


def unpack(data: bytes, *, name: str) -> Evidence:
    """The evidence of a file.

    Args:
        name: the file's, for the error.

    Raises:
        BadDataError: it is not one of ours.
    """
    try:
        content = json.loads(data)
        if content["schema"] != SCHEMA:
            raise BadDataError(f"{name}: schema {content['schema']!r}, expected {SCHEMA!r}")
        run = parse_run(content["run"]) if content["run"] else None
        return from_probe(content["evidence"], host=content["host"], run=run)
    except (ValueError, KeyError, TypeError) as error:
        raise BadDataError(
            f"{name} is not evidence that hsops saved ({type(error).__name__}: {error})",
            fix="hsops diagnose --save FILE makes one; for a server's log use --log",
        ) from None


def redact(value: Any) -> Any:
    """The same JSON value with what looks like a key, token or password replaced by ``***``."""
    if isinstance(value, str):
        return _SECRETS.sub(lambda m: "***" if m["hub"] else f"{m['keep']}***", value)
    if isinstance(value, list | tuple):
        found = [redact(item) for item in value]
        for i, item in enumerate(found[:-1]):
            if isinstance(item, str) and is_secret_flag(item):
                found[i + 1] = MASK
        return found
    if isinstance(value, dict):
        return {key: redact(item) for key, item in value.items()}
    return value
