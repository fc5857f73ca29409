"""The client's end of the agent: uploaded once by content hash, called with JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hsops.agent.protocol import PROTOCOL, SERVE
from hsops.core.command import Command
from hsops.core.deadline import FOLLOW, QUICK, Deadline
from hsops.core.errors import AgentError, DeadlineError, HsopsError, RemoteError, UnreachableError
from hsops.core.events import Emit, Note
from hsops.core.runs import Run
from hsops.remote.calls import said
from hsops.remote.host import Completed, Host, Stream
from hsops.remote.interpreter import explain, wrong_python
from hsops.remote.me import myself
from hsops.remote.shell import NOT_STORED, with_file
from hsops.remote.talk import Answers, Talk, lines
from hsops.remote.zipapp import SIZE, build, identity

Question = tuple[str, dict[str, Any]]
"""A verb and its parameters."""

# $1 the agent's path, $2 its size, then a command to run if they are right
_GUARD = '[ "$(wc -c 2>/dev/null <"$1")" -eq "$2" ] 2>/dev/null || exit 121; shift 2; exec "$@"'
_MISSING = 121  # no agent verb and no interpreter exits so: 0 and 1 are ours, 2 Python's, 126 and up the shell's


class Agent:
    """Calls the agent on one host.

    Args:
        host: where.
        python: the interpreter that runs SGLang there.
        state_dir: hsops' folder there; the agent lies at ``agent/<hash>.pyz`` in it.
        emit: is told what the agent did beside what it was asked for: a change that a crash interrupted was put right.
        lock_wait: seconds that a verb may wait while somebody else changes the host.
    """

    def __init__(
        self,
        host: Host,
        *,
        python: str,
        state_dir: str,
        emit: Emit = lambda _: None,
        lock_wait: float = 10.0,
    ) -> None:
        self.host, self.python, self.state_dir, self.emit = host, python, state_dir, emit
        self.lock_wait = lock_wait
        self.path = f"{state_dir}/agent/{identity()}.pyz"
        self._uploaded = False
        self._talk, self._talking = Talk(self._serve, self._is_reply, build), threading.Lock()
        self._door, self._soon = host.stream, tuple[str, ...]()
        self._answers = Answers()
        self._at = dict[str, Agent]()

    def at(self, run: Run) -> Agent:
        """The agent where the processes of ``run`` are: this one, or for a job one on its compute node.

        That one is a step of the job, beside the server's: only in there its processes, its port and its GPUs are to be
        seen, and Slurm ends the step with the job.
        """
        job = run.job
        if job is None or run.pending or job.over:
            return self
        key = f"{job.id}.{job.restarts}.{job.suspended}"
        if key not in self._at:
            from hsops.remote.job import JobAgent  # it is one of these

            self._at[key] = JobAgent(self, job)
        return self._at[key]

    def begin(self, *verbs: str) -> None:
        """Reach the host now, while other work goes on here, for calls that come soon.

        Through OpenSSH's client: it works beside us, and needs none of the third of a second that paramiko takes to
        load. What goes wrong is told by the first call. Begun already: nothing more.

        Args:
            verbs: those that will be called, loaded meanwhile.
        """
        with self._talking, suppress(HsopsError):
            if self._soon == verbs and self._talk.begun:
                return
            self._door, self._soon = self.host.bulk, verbs
            self._talk.begin(Deadline())

    def expect(self, *questions: Question) -> None:
        """These will be asked next, in this order: they travel with the first one, and cost no way of their own.

        For verbs that change nothing. An answer counts for a moment, and only as long as nothing else is asked.
        """
        self._answers.expected = [self._line(verb, params) for verb, params in questions]

    def call(self, verb: str, /, *, deadline: Deadline = Deadline(), **params: Any) -> dict[str, Any]:
        """One verb, one result.

        Raises:
            AgentError: the agent refused; ``code`` says why.
            RemoteError: there is no usable Python at ``python``.
        """
        if not self._talking.acquire(blocking=False):  # another thread's verb is under way
            return self._call_alone(verb, params, deadline)
        try:
            return self._result(self._parse(self._ask(verb, params, deadline)), verb)
        finally:
            self._talking.release()

    @contextmanager
    def stream(self, verb: str, /, *, deadline: Deadline = FOLLOW, **params: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """A verb that reports while it works: yields an iterator of events.

        The last item is ``{"kind": "result", ...}``; beats are swallowed. Leaving the context ends the verb.
        """
        command, stdin = self.request(verb, **params)
        with self.host.stream(command, stdin=stdin, deadline=deadline) as stream:
            yield self._events(stream, verb)

    @contextmanager
    def tunnel(self, port: int) -> Iterator[int]:
        """A port of this machine's 127.0.0.1 that reaches 127.0.0.1:``port`` where the agent runs.

        Behind an exec prefix through the agent: what is in there may have a network of its own.
        """
        if not self.host.via:
            with self.host.tunnel(port) as here:
                yield here
            return
        from hsops.remote.relay import relayed

        def start() -> Stream:
            command, stdin = self.request("relay", port=port)
            return self.host.stream(command, stdin=stdin + b"\n", deadline=FOLLOW, talk=True)

        with relayed(start, self.host.name) as here:
            yield here

    def request(self, verb: str, /, **params: Any) -> tuple[Command, bytes]:
        """The command line and standard input of a call, for transports of the caller's own (``Host.bulk``)."""
        if not self._uploaded:
            self._run(Command(("true",)), b"", QUICK)
        return self._request(verb, params)

    def explain(self, done: Completed) -> HsopsError:
        """Why a call brought no reply."""
        return explain(self.host, self.python, done)

    def _ask(self, verb: str, params: dict[str, Any], deadline: Deadline) -> bytes:
        """The reply line, from the agent that answered last if it is still there."""
        request = self._line(verb, params)
        if known := self._answers.take(request):
            return known
        several = self._answers.asked_with(request)
        line = b"[" + b",".join(several) + b"]\n" if len(several) > 1 else request + b"\n"
        try:
            answer = self._talk.ask(line, deadline, len(several))
        except UnreachableError as error:
            if isinstance(error, DeadlineError) or self._talk.reached or self._door == self.host.stream:
                raise
            self._door = self.host.stream  # nothing was asked yet; it may know a way, and can tell why there is none
            answer = self._talk.ask(line, deadline, len(several))
        if isinstance(answer, Completed) and answer.exit == NOT_STORED and not self._uploaded:
            raise self._unwritable(said(answer.stderr, self.path))
        if isinstance(answer, Completed):
            raise self.explain(answer)
        self._uploaded = True
        return self._answers.keep(several, answer)

    def _serve(self, deadline: Deadline) -> Stream:
        command = Command((self.python, "-I", self.path, SERVE, *self._soon))
        if not self._uploaded:
            command = with_file(self.path, SIZE, 0o600, command)
        return self._door(command, deadline=deadline, talk=True)

    def _call_alone(self, verb: str, params: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
        command, stdin = self._request(verb, params)
        done = self._run(command, stdin, deadline)
        replies = [line for line in done.stdout.splitlines() if self._is_reply(line)]
        if not replies:
            raise self.explain(done)
        return self._result(self._parse(replies[-1]), verb)

    def _events(self, stream: Stream, verb: str) -> Iterator[dict[str, Any]]:
        for line in lines(stream):
            if not line.startswith(b"{"):  # a sitecustomize or wrapper of the interpreter that prints
                continue
            message = self._parse(line)
            if event := message.get("event"):
                if event["kind"] != "beat":
                    yield event
            else:
                yield {"kind": "result", **self._result(message, verb)}
                return
        raise self.explain(stream.finish())

    def _request(self, verb: str, params: dict[str, Any]) -> tuple[Command, bytes]:
        return Command((self.python, "-I", self.path, verb)), json.dumps(self._body(params)).encode()

    def _body(self, params: dict[str, Any]) -> dict[str, Any]:
        always = {"state_dir": self.state_dir, "lock_wait": self.lock_wait, "client": myself()}
        return {"protocol": PROTOCOL, "params": {**always, **params}}

    def _line(self, verb: str, params: dict[str, Any]) -> bytes:
        return json.dumps({"verb": verb, **self._body(params)}).encode()

    def _guarded(self, command: Command) -> Command:
        return Command(("sh", "-c", _GUARD, "sh", self.path, str(SIZE), *command.argv))

    def _run(self, command: Command, stdin: bytes, deadline: Deadline) -> Completed:
        """Run ``command``, with the agent in its place: the first call finds out and runs in one round trip."""
        if self._uploaded:
            return self.host.run(command, stdin=stdin, deadline=deadline)
        done = self.host.run(self._guarded(command), stdin=stdin, deadline=deadline)
        if done.exit == _MISSING:
            self._upload()
            done = self.host.run(command, stdin=stdin, deadline=deadline)
        self._uploaded = True
        return done

    def _upload(self) -> None:
        try:
            self.host.put(build(), self.path)
            self._uploaded = True
        except RemoteError as error:
            raise self._unwritable(error.message) from None

    def _unwritable(self, message: str) -> RemoteError:
        return RemoteError(
            message,
            host=self.host.name,
            why="hsops keeps its agent, patches and runs in state_dir on the host",
            fix="set hosts.<name>.state_dir in inventory.yaml to a folder that the SSH user may write",
        )

    def _is_reply(self, line: bytes) -> bool:
        """Not what a sitecustomize or wrapper of the interpreter prints, nor an event, which is told on."""
        if not line.startswith(b'{"event"'):
            return line.startswith(b"{")
        event = self._parse(line)["event"]
        if event["kind"] == "recovered":
            self.emit(_recovered(event, self.host.name))
        if event["kind"] == "waiting":
            self.emit(Note(f"waits up to {event['seconds']:.0f} s: {event['holder']['words']}", self.host.name))
        return False

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError:
            shown = line[:200].decode(errors="replace")
            raise RemoteError(f"the agent's reply is cut short or not JSON: {shown!r}", host=self.host.name) from None
        return message

    def _result(self, message: dict[str, Any], verb: str) -> dict[str, Any]:
        error = message.get("error")
        if error is None:
            result: dict[str, Any] = message["result"]
            return result
        raise refusal(self, verb, error)


def refusal(agent: Agent, verb: str, error: dict[str, Any]) -> RemoteError:
    """The agent's ``error`` as one of ours; what hsops itself causes says so and where."""
    code, message, detail = error["code"], error["message"], error.get("detail") or {}
    if code == "old-python":
        return wrong_python(agent.host, f"{agent.python} is Python {message}, the agent needs 3.10 or newer")
    why = fix = ""
    if code == "os-error":
        message, why, fix = f"{verb} failed: {message}", *_host_trouble(agent, detail.get("errno", ""))
    elif code == "bug":
        frames = [line.strip() for line in detail.get("traceback", "").splitlines() if line.strip().startswith("File ")]
        message = f"the agent failed in {verb}: {message}"
        why = f"a fault in hsops: {frames[-1]}" if frames else "a fault in hsops"
        fix = "--json has the traceback: please report it"
    elif code == "protocol":
        fix = f"delete {agent.path} on the host: it is not this hsops' agent"
    return AgentError(message, code=code, detail=detail, host=agent.host.name, why=why, fix=fix)


def _recovered(event: dict[str, Any], host: str) -> Note:
    left = f"; left as somebody else made them since: {', '.join(event['left'])}" if event["left"] else ""
    if event.get("aside"):
        left += f"; what lay there meanwhile is kept in {event['aside']}"
    result = "its files are as before" if event["what"] == "undone" else "it counted already, only the tidying was left"
    return Note(f"an interrupted change of {event['patch']} was {event['what']}: {result}{left}", host, "warn")


def _host_trouble(agent: Agent, errno: str) -> tuple[str, str]:
    """Why an operating system's refusal happened, and what helps."""
    if errno in ("ENOSPC", "EDQUOT"):
        return "a disk of the host is full", f"free some room there (df {agent.state_dir}), then run it again"
    if errno in ("EACCES", "EPERM", "EROFS"):
        return "the SSH user may not do that there", "give it the right to, or name another folder in inventory.yaml"
    return "the host's system refused", "put that right on the host, then run it again"
