"""The agent's one entry: a verb, a request on stdin, JSON lines out."""

import errno
import importlib
import sys
import traceback

from hsops.agent import protocol

VERBS = {
    "hello": "facts:hello",
    "model-read": "facts:model",
    "patch-inspect": "patch:inspect",
    "patch-apply": "patch:apply",
    "patch-revert": "patch:revert",
    "run-start": "runs:start",
    "run-list": "runs:list_runs",
    "run-follow": "follow:follow",
    "run-stop": "stop:stop",
    "run-exec": "supervisor:main",
    "probe": "probe:probe",
    "log-read": "logs:read",
    "dumps-list": "dumps:list_dumps",
    "dumps-follow": "dumps:follow",
    "dumps-send": "dumps:send",
}


def main(argv: "list[str]") -> int:
    """Run one verb; the exit status is 0 for a result and 1 for an error."""
    try:
        if len(argv) != 1 or argv[0] not in VERBS:
            raise protocol.Refusal("bad-verb", f"usage: agent VERB, one of {', '.join(VERBS)}")
        module, function = VERBS[argv[0]].split(":")
        params = protocol.read_request(sys.stdin.buffer)
        result = getattr(importlib.import_module(f"hsops.agent.{module}"), function)(params)
        if result is not None:  # a binary verb has written its own reply
            protocol.write({"result": result})
    except protocol.Refusal as refusal:
        protocol.write({"error": {"code": refusal.code, "message": refusal.message, "detail": refusal.detail}})
        return 1
    except BrokenPipeError:  # the client went away; nobody is left to tell
        return 1
    except OSError as error:  # the host's doing, not ours: a full disk, a folder that may not be written
        detail = {"errno": errno.errorcode.get(error.errno or 0, ""), "traceback": traceback.format_exc()[-4000:]}
        where = f": {error.filename}" if error.filename else ""
        protocol.write(
            {"error": {"code": "os-error", "message": f"{error.strerror or error}{where}", "detail": detail}}
        )
        return 1
    except Exception as error:  # noqa: BLE001 - the last frame of the agent: whatever it is must reach the client as JSON
        detail = {"traceback": traceback.format_exc()[-4000:]}
        protocol.write({"error": {"code": "bug", "message": f"{type(error).__name__}: {error}", "detail": detail}})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
