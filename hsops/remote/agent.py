"""The client's end of the agent: uploaded once by content hash, called with JSON."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hsops.agent.protocol import PROTOCOL
from hsops.core.command import Command
from hsops.core.deadline import FOLLOW, Deadline
from hsops.core.errors import AgentError, RemoteError
from hsops.remote.host import Completed, Host, Stream

AGENT = Path(__file__).parent.parent / "agent"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # zip cannot hold an older date; a constant makes the bytes reproducible


@cache
def build() -> bytes:
    """The agent as a zipapp; the same sources give the same bytes on every machine."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        members = {"__main__.py": b"import sys\nfrom hsops.agent.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"}
        members["hsops/__init__.py"] = b""
        for path in sorted(AGENT.glob("*.py")):
            members[f"hsops/agent/{path.name}"] = path.read_bytes()
        for name, data in members.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            info.create_system = 3
            archive.writestr(info, data)
    return out.getvalue()


class Agent:
    """Calls the agent on one host.

    Args:
        host: where.
        python: the interpreter that runs SGLang there.
        state_dir: hsops' folder there; the agent lies at ``agent/<hash>.pyz`` in it.
    """

    def __init__(self, host: Host, *, python: str, state_dir: str) -> None:
        self.host, self.python, self.state_dir = host, python, state_dir
        self.path = f"{state_dir}/agent/{hashlib.sha256(build()).hexdigest()[:16]}.pyz"
        self._uploaded = False

    def call(self, verb: str, /, *, deadline: Deadline = Deadline(), **params: Any) -> dict[str, Any]:
        """One verb, one result.

        Raises:
            AgentError: the agent refused; ``code`` says why.
            RemoteError: there is no usable Python at ``python``.
        """
        command, stdin = self.request(verb, **params)
        done = self.host.run(command, stdin=stdin, deadline=deadline)
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        if not lines:
            raise self._no_reply(done)
        return self._result(lines[-1], done)

    @contextmanager
    def stream(self, verb: str, /, *, deadline: Deadline = FOLLOW, **params: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """A verb that reports while it works: yields an iterator of events.

        The last item is ``{"kind": "result", ...}``; beats are swallowed. Leaving the context ends the verb.
        """
        command, stdin = self.request(verb, **params)
        with self.host.stream(command, stdin=stdin, deadline=deadline) as stream:
            yield self._events(stream)

    def request(self, verb: str, /, **params: Any) -> tuple[Command, bytes]:
        """The command line and standard input of a call, for transports of the caller's own (``Host.bulk``)."""
        self._upload()
        body = {"protocol": PROTOCOL, "params": {"state_dir": self.state_dir, **params}}
        return Command((self.python, "-I", self.path, verb)), json.dumps(body).encode()

    def _events(self, stream: Stream) -> Iterator[dict[str, Any]]:
        rest = b""
        for piece in stream:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                message = self._parse(line)
                if event := message.get("event"):
                    if event["kind"] != "beat":
                        yield event
                else:
                    yield {"kind": "result", **self._result(line, None)}
                    return
        raise self._no_reply(stream.finish())

    def _upload(self) -> None:
        if self._uploaded:
            return
        if self.host.run(Command(("test", "-s", self.path))).exit != 0:
            self.host.put(build(), self.path)
        self._uploaded = True

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            shown = line[:200].decode(errors="replace")
            raise RemoteError(f"the agent's reply is not JSON: {shown!r}", host=self.host.name)
        return message

    def _result(self, line: bytes, done: Completed | None) -> dict[str, Any]:
        message = self._parse(line)
        if "result" in message:
            result: dict[str, Any] = message["result"]
            return result
        if error := message.get("error"):
            raise AgentError(error["message"], code=error["code"], detail=error.get("detail"), host=self.host.name)
        raise self._no_reply(done) if done else RemoteError("the agent ended without a result", host=self.host.name)

    def _no_reply(self, done: Completed) -> RemoteError:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        last = said[-1] if said else f"exit {done.exit}, no output"
        return RemoteError(
            f"{self.python} did not run the agent: {last}",
            host=self.host.name,
            why="hsops runs its agent with the interpreter that runs SGLang (Python 3.10 or newer)",
            fix="set hosts.<name>.python in inventory.yaml to that interpreter; try it: ssh HOST PYTHON --version",
        )
