"""What client and agent say to each other.

Request: ``python -I agent.pyz VERB`` with one JSON object on standard input: ``{"protocol": 1, "params": {...}}``; or
``python -I agent.pyz serve`` and such an object with its ``"verb"``, or a list of them, on each line, as many as come
(``serve.py``); verbs after ``serve`` are loaded before they are asked for.
Reply, one JSON object a line: any number of ``{"event": {...}}``, then one ``{"result": {...}}`` (exit 0) or
``{"error": {"code", "message", "detail"}}`` (exit 1). A verb that streams writes ``{"event": {"kind": "beat"}}`` at
least every 5 s. Binary verbs (``dumps-send``) say so in their docstring.
"""

import json
import sys
from typing import Any

PROTOCOL = 1
SERVE = "serve"


class Refusal(Exception):  # noqa: N818 - it is not always an error of ours
    """The agent will not or cannot do it.

    Args:
        code: a stable word that the client decides on (``no-sglang``, ``port-taken``, ``no-such-run`` ...).
        message: one sentence for a person.
        detail: facts that belong to the code, JSON values.
    """

    def __init__(self, code: str, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.detail = code, message, detail


def read_request(text: bytes) -> "dict[str, Any]":
    """The parameters of a request.

    Raises:
        Refusal: not a request, or of another protocol version.
    """
    try:
        request = json.loads(text or b"{}")
        version, params = request["protocol"], request["params"]
    except (ValueError, KeyError, TypeError):
        raise Refusal("bad-request", "the agent was called without a request on standard input") from None
    if version != PROTOCOL:
        raise Refusal("protocol", f"the agent speaks protocol {PROTOCOL}, the request is of {version}")
    if not isinstance(params, dict):
        raise Refusal("bad-request", "params must be an object")
    return params


def emit(kind: str, **fields: Any) -> None:
    """Write one event line and flush it."""
    write({"event": {"kind": kind, **fields}})


def write(message: "dict[str, Any]") -> None:
    """Write one JSON line and flush it."""
    sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
    sys.stdout.flush()
