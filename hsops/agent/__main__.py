"""The agent's one entry: a verb, a request on stdin, JSON lines out."""

import contextlib
import errno
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from hsops.agent import protocol
from hsops.agent.serve import serve

VERBS = {
    "hello": "facts:hello",
    "clock": "facts:clock",
    "doctor": "doctor:doctor",
    "env-look": "facts:environment",
    "args-look": "options:look",
    "model-read": "facts:model",
    "patch-inspect": "patch:inspect",
    "patch-check": "patch:check",
    "patch-apply": "patch:apply",
    "patch-rehearse": "patch:rehearse",
    "patch-revert": "patch:revert",
    "audit-read": "audit:read",
    "lock-show": "lock_verbs:show",
    "lock-evict": "lock_verbs:evict",
    "lock-release": "lock_verbs:release",
    "run-start": "runs:start",
    "run-list": "runs:list_runs",
    "run-follow": "follow:follow",
    "run-stop": "stop:stop",
    "orphans": "orphans:orphans",
    "orphan-stop": "orphans:stop",
    "run-exec": "supervisor:main",
    "job-exec": "job:execute",
    "probe": "probe:probe",
    "pulse": "pulse:pulse",
    "log-read": "logs:read",
    "dumps-list": "dumps:list_dumps",
    "dumps-follow": "dumps:follow",
    "dumps-send": "send:send",
    "tree-list": "tree:list_tree",
    "dumps-evict": "evict:evict",
    "dumps-direct": "direct:direct",
    "relay": "relay:relay",
    "meet": "meet:meet",
    "reach": "meet:reach",
}


def note_use(agent: str) -> None:
    """Once a day, for ``prune``: who is used is not removed."""
    with contextlib.suppress(OSError):
        if agent.endswith(".pyz") and os.stat(agent).st_mtime < time.time() - 86400:
            os.utime(agent)


def main(argv: "list[str]") -> int:
    """Run one verb, or with ``serve`` those that come; the exit status is 0 for a result and 1 for an error."""
    note_use(sys.argv[0])
    if argv[:1] == [protocol.SERVE]:
        for verb in argv[1:]:
            _load(json.dumps({"verb": verb}).encode())
        keep = getattr(globals()["__loader__"], "keep", lambda: None)  # of the zipapp
        return serve(sys.stdin.buffer, _load, keep, _answer)
    if len(argv) != 1:
        return _run(lambda: ("", {}))
    return _run(lambda: (argv[0], protocol.read_request(sys.stdin.buffer.readline())))


def _load(line: bytes) -> None:
    """The module of a request's verb. What is wrong with it is told by the answer."""
    with contextlib.suppress(Exception):
        importlib.import_module(f"hsops.agent.{VERBS[json.loads(line)['verb']].split(':')[0]}")


def _answer(line: bytes) -> int:
    return _run(lambda: (str(json.loads(line).get("verb")), protocol.read_request(line)))


def _run(request: "Callable[[], tuple[str, dict[str, Any]]]") -> int:
    """Write the reply to a request: a verb and its parameters."""
    try:
        verb, params = request()
        if verb not in VERBS:
            raise protocol.Refusal("bad-verb", f"usage: agent VERB, one of {', '.join(VERBS)}")
        module, function = VERBS[verb].split(":")
        result = getattr(importlib.import_module(f"hsops.agent.{module}"), function)(params)
        if result is not None:  # a binary verb has written its own reply
            protocol.write({"result": result})
    except protocol.Refusal as refusal:
        return _fail(refusal.code, refusal.message, refusal.detail)
    except BrokenPipeError:  # the client went away; nobody is left to tell
        return 1
    except OSError as error:  # the host's doing, not ours: a full disk, a folder that may not be written
        where = f": {error.filename}" if error.filename else ""
        detail = {"errno": errno.errorcode.get(error.errno or 0, ""), "traceback": _traceback()}
        return _fail("os-error", f"{error.strerror or error}{where}", detail)
    except Exception as error:  # noqa: BLE001 - the last frame of the agent: whatever it is must reach the client as JSON
        return _fail("bug", f"{type(error).__name__}: {error}", {"traceback": _traceback()})
    return 0


def _fail(code: str, message: str, detail: "dict[str, Any]") -> int:
    protocol.write({"error": {"code": code, "message": message, "detail": detail}})
    return 1


def _traceback() -> str:
    import traceback  # 10 ms that no good end needs

    return traceback.format_exc()[-4000:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
