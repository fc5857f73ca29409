"""The client's end of the agent, against real hosts and real wrong interpreters."""

from __future__ import annotations

import json
import marshal
import os
import shutil
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hsops.core.command import Command
from hsops.core.deadline import Deadline
from hsops.core.errors import AgentError, AgentKilledError, HostKeyError, RemoteError
from hsops.core.inventory import HostSpec
from hsops.remote.agent import Agent
from hsops.remote.connect import connect
from hsops.remote.host import Host
from hsops.remote.shell import NOT_STORED, with_file
from hsops.remote.talk import IDLE_S
from hsops.remote.zipapp import build
from tests.fetching import wait_for
from tests.hosts import Change, wait_gone


@pytest.fixture(scope="module", params=["local", "ssh"])
def host(request: pytest.FixtureRequest, sshd_host: HostSpec) -> Iterator[Host]:
    """The host, here and over SSH."""
    host = connect(sshd_host if request.param == "ssh" else sshd_host.model_copy(update={"ssh": "local"}))
    yield host
    host.close()


@pytest.fixture
def agent(host: Host, tmp_path: Path) -> Agent:
    """An agent that was never uploaded."""
    return Agent(host, python=sys.executable, state_dir=str(tmp_path / "state dir"))


Interpreter = Callable[[str], str]


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    """A function that makes an executable out of a shell script."""

    def make(script: str) -> str:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_the_agent_answers_with_the_interpreter_that_was_named(agent: Agent) -> None:
    """And lies in a private folder."""
    assert agent.call("hello")["executable"] == sys.executable

    folder = Path(agent.path).parent
    assert [path.name for path in folder.glob("*.pyz")] == [Path(agent.path).name]
    assert folder.stat().st_mode & 0o777 == 0o700


def counting(interpreter: Interpreter, log: Path) -> str:
    """An interpreter that notes its starts."""
    return interpreter(f'echo $$ "$4" >>{log}; exec {sys.executable} "$@"')


def test_calls_after_one_another_are_answered_by_one_interpreter(
    host: Host, tmp_path: Path, interpreter: Interpreter
) -> None:
    """Refusals too; a call beside another has one of its own, and so has one after a while."""
    agent = Agent(host, python=counting(interpreter, tmp_path / "log"), state_dir=str(tmp_path / "state"))

    for _ in range(3):
        agent.call("hello")
        with pytest.raises(AgentError):
            agent.call("no-such-verb")
    assert len((tmp_path / "log").read_text().splitlines()) == 1

    with agent._talking:
        assert agent.call("hello")["python_ok"] is True
    assert len((tmp_path / "log").read_text().splitlines()) == 2
    agent._talk._heard -= 2 * IDLE_S
    assert agent.call("hello")["python_ok"] is True
    assert len((tmp_path / "log").read_text().splitlines()) == 2


def test_an_agent_begun_early_answers_and_is_brought_by_the_same_channel(
    host: Host, tmp_path: Path, interpreter: Interpreter
) -> None:
    """Whatever is asked first; twice begun is once used."""
    agent = Agent(host, python=counting(interpreter, tmp_path / "log"), state_dir=str(tmp_path / "state"))

    agent.begin()

    assert agent.call("hello")["python_ok"] is True
    assert agent.call("run-list")["runs"] == []
    assert Path(agent.path).read_bytes() == build()
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_questions_that_are_expected_travel_together(host: Host, tmp_path: Path) -> None:
    """One line for all of them, also when the agent has to be brought first; each answer is given once."""
    said = tmp_path / "said"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ntee -a {said} | {sys.executable} "$@"\n')
    python.chmod(0o755)
    agent = Agent(host, python=str(python), state_dir=str(tmp_path / "state"))

    agent.expect(("hello", {}), ("run-list", {"limit": 1}), ("clock", {}))
    assert agent.call("hello")["python_ok"] is True
    assert agent.call("run-list", limit=1) == {"runs": []}
    first, second = agent.call("clock"), agent.call("clock")

    wait_for(lambda: said.read_text().count("\n") >= 2, "the second line in tee's file")
    asked = [json.loads(line) for line in said.read_text().splitlines()]
    assert [[one["verb"] for one in asked[0]], asked[1]["verb"]] == [["hello", "run-list", "clock"], "clock"]
    assert len(asked) == 2 and second["time"] > first["time"]


def test_an_answer_is_dropped_when_something_else_is_asked(agent: Agent) -> None:
    """It may be true no more; a refusal among them is told where it belongs; the expected need not come."""
    agent.expect(("hello", {}), ("no-such-verb", {}), ("clock", {}))
    agent.call("hello")
    with pytest.raises(AgentError, match="usage"):
        agent.call("no-such-verb")
    agent.call("run-list", limit=1)
    before = time.time()
    assert agent.call("clock")["time"] >= before

    agent.expect(("hello", {}), ("clock", {}))
    assert agent.call("clock")["time"] >= before
    assert agent.call("hello")["python_ok"] is True


def kept(agent: Agent) -> Path:
    """The byte code beside an agent, once it is there: it is written while the first answer is on its way."""
    folder = Path(agent.path).parent
    wait_for(lambda: bool(list(folder.glob("*.code"))), "the byte code")
    (found,) = folder.glob("*.code")
    return found


def test_the_agent_is_compiled_once(host: Host, tmp_path: Path) -> None:
    """The next process, of another client, takes what the first one compiled; the file is private too."""
    first, second = (Agent(host, python=sys.executable, state_dir=str(tmp_path / "state")) for _ in range(2))
    first.call("hello")
    file = kept(first)
    data = file.read_bytes()
    codes = marshal.loads(data[20:])
    codes["hsops.agent.facts"] = compile("def hello(params): return {'kept': True}", "facts", "exec")
    file.write_bytes(sealed(data[:4], marshal.dumps(codes)))

    assert second.call("hello") == {"kept": True}
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["cut short", "another byte", "of another Python", "empty"])
def test_byte_code_that_is_not_whole_is_made_again(host: Host, tmp_path: Path, damage: str) -> None:
    """Never run, never a fault."""
    agent = Agent(host, python=sys.executable, state_dir=str(tmp_path / "state"))
    agent.call("hello")
    file = kept(agent)
    whole = file.read_bytes()
    harm = {
        "cut short": whole[:-100],
        "another byte": whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:],
        "of another Python": b"\0\0\0\0" + whole[4:],
        "empty": b"",
    }
    file.write_bytes(harm[damage])

    assert Agent(host, python=sys.executable, state_dir=str(tmp_path / "state")).call("hello")["python_ok"] is True
    wait_for(lambda: is_sealed(file.read_bytes(), whole[:4]), "whole byte code again")


def sealed(magic: bytes, data: bytes) -> bytes:
    """As the agent seals its byte code."""
    return magic + f"{zlib.crc32(data):08x}{len(data):08x}".encode() + data


def is_sealed(data: bytes, magic: bytes) -> bool:
    """Some byte code, and whole."""
    return len(data) > 1000 and data == sealed(magic, data[20:])


def test_an_agent_that_is_asked_nothing_leaves_nothing(host: Host, tmp_path: Path) -> None:
    """Begun, and then what the user asked for turned out to be wrong: the input ends before the first question."""
    done = host.run(with_file(str(tmp_path / "state/agent/x.pyz"), 1000, 0o600, Command(("echo", "ran"))))

    assert (done.exit, done.stdout) == (NOT_STORED, b"")
    assert not (tmp_path / "state").exists()


def test_why_an_early_beginning_failed_is_told_by_the_first_call(change: Change, tmp_path: Path) -> None:
    """In the words of the control connection, which knows the line of known_hosts."""
    host = connect(change(UserKnownHostsFile="/dev/null"))
    agent = Agent(host, python=sys.executable, state_dir=str(tmp_path / "state"))

    agent.begin()

    with pytest.raises(HostKeyError, match="is unknown") as caught:
        agent.call("hello")
    assert "--accept-new" in caught.value.fix
    host.close()


def test_a_beginning_that_failed_is_not_begun_again(
    change: Change, tmp_path: Path, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong key is offered as seldom as possible: hosts count failures and lock out."""
    ssh = Path(interpreter(f'echo "$1" >>{tmp_path}/log; exec {shutil.which("ssh")} "$@"'))
    ssh.rename(tmp_path / "ssh")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    host = connect(change(UserKnownHostsFile="/dev/null"))
    agent = Agent(host, python=sys.executable, state_dir=str(tmp_path / "state"))

    agent.begin("hello")
    stream = agent._talk._stream
    assert stream
    wait_for(lambda: not stream.listens, "the end of OpenSSH's client")
    agent.begin("hello")
    with pytest.raises(HostKeyError):
        agent.call("hello")

    assert (tmp_path / "log").read_text().split() == ["-G", "-T"]
    host.close()


def test_a_silent_agent_is_replaced_before_a_verb_is_risked(
    host: Host, tmp_path: Path, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, as behind a dead link, while nothing was asked."""
    monkeypatch.setattr("hsops.remote.talk._PING_DEADLINE", Deadline(connect=0, idle=0.5))
    agent = Agent(host, python=counting(interpreter, tmp_path / "log"), state_dir=str(tmp_path / "state"))
    agent.call("hello")
    stopped = psutil.Process(int((tmp_path / "log").read_text().split()[0]))
    stopped.suspend()

    agent._talk._heard -= 2 * IDLE_S
    assert agent.call("hello")["python_ok"] is True

    assert wait_gone(stopped.pid)
    assert len((tmp_path / "log").read_text().splitlines()) == 2


def test_an_interpreter_that_was_killed_meanwhile_is_replaced(
    host: Host, tmp_path: Path, interpreter: Interpreter
) -> None:
    """Nothing was under way, so nothing is lost."""
    agent = Agent(host, python=counting(interpreter, tmp_path / "log"), state_dir=str(tmp_path / "state"))
    agent.call("hello")
    pid = int((tmp_path / "log").read_text().split()[0])

    os.kill(pid, signal.SIGKILL)
    assert wait_gone(pid)
    until = time.monotonic() + 10
    while agent._talk._stream.listens and time.monotonic() < until:  # its shell still has to tell us
        time.sleep(0.01)

    assert agent.call("hello")["python_ok"] is True


def test_a_verb_that_is_killed_is_told_as_one_and_the_next_call_works(
    host: Host, tmp_path: Path, interpreter: Interpreter
) -> None:
    """The out-of-memory killer takes the child that works, not the interpreter that waits for it."""
    agent = Agent(host, python=counting(interpreter, tmp_path / "log"), state_dir=str(tmp_path / "state"))
    agent.call("hello")
    server = psutil.Process(int((tmp_path / "log").read_text().split()[0]))
    os.mkfifo(tmp_path / "config.json")

    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(agent.call, "model-read", path=str(tmp_path))
        writer, until = None, time.monotonic() + 20
        while writer is None and time.monotonic() < until:
            with suppress(OSError):  # until the verb reads the pipe; the first call's child is gone by then
                writer = os.open(tmp_path / "config.json", os.O_WRONLY | os.O_NONBLOCK)
            time.sleep(0.01)
        assert writer is not None
        (verb,) = server.children()
        verb.kill()
        with pytest.raises(RemoteError, match="ended by signal 9"):
            reply.result(20)
    os.close(writer)

    assert agent.call("hello")["python_ok"] is True


def test_a_cut_upload_is_repaired(agent: Agent, host: Host) -> None:
    """A file of the wrong size is not run."""
    agent.call("hello")
    Path(agent.path).write_bytes(Path(agent.path).read_bytes()[:1000])

    again = Agent(host, python=sys.executable, state_dir=agent.state_dir)

    assert again.call("hello")["python_ok"] is True


def test_first_calls_at_once_do_not_meet(host: Host, tmp_path: Path) -> None:
    """Four clients upload the same file at the same time."""
    agents = [Agent(host, python=sys.executable, state_dir=str(tmp_path / "state")) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda a: a.call("hello"), agents))

    assert all(answer["python_ok"] for answer in answers)
    assert len(list((tmp_path / "state/agent").glob("*.pyz"))) == 1


def test_a_refusal_has_its_code(agent: Agent) -> None:
    """A verb that does not exist."""
    with pytest.raises(AgentError) as caught:
        agent.call("no-such-verb")

    assert caught.value.code == "bad-verb"


def test_another_protocol_is_refused(agent: Agent, host: Host) -> None:
    """By the agent, before anything is done."""
    command, _ = agent.request("hello")

    done = host.run(command, stdin=json.dumps({"protocol": 99, "params": {}}).encode())

    assert done.exit == 1
    assert json.loads(done.stdout)["error"]["code"] == "protocol"


def test_a_stream_ends_with_the_result(agent: Agent) -> None:
    """Also of a verb without events."""
    with agent.stream("hello") as events:
        *before, last = events

    assert before == []
    assert last["kind"] == "result"
    assert last["python_ok"] is True


@pytest.mark.parametrize(
    "script, message",
    [
        ("echo Python 2.7.18 >&2; exit 2", "{python} is Python 2.7.18, the agent needs 3.10 or newer"),
        ("echo Python 3.8.10; exit 1", "{python} is Python 3.8.10, the agent needs 3.10 or newer"),
        ("echo 'gcc (Debian) 12.2'", "{python} is not a Python: it answers --version with 'gcc (Debian) 12.2'"),
        ("exit 1", "{python} is not a Python: it answers --version with ''"),
        ("kill -9 $$", "the agent was ended by signal 9"),
        (
            "test $1 = --version && echo Python 3.11.2 || { echo no libpython >&2; exit 1; }",
            "{python} did not run the agent: no libpython",
        ),
    ],
    ids=["python 2", "python 3.8", "gcc", "silent", "killed", "broken"],
)
def test_a_wrong_interpreter_is_named_for_what_it_is(
    host: Host, tmp_path: Path, interpreter: Interpreter, script: str, message: str
) -> None:
    """What lies at hosts.<name>.python."""
    python = interpreter(script)

    with pytest.raises(RemoteError) as caught:
        Agent(host, python=python, state_dir=str(tmp_path / "state")).call("hello")

    assert caught.value.message == message.format(python=python)
    assert type(caught.value) is (AgentKilledError if "signal" in message else RemoteError)


@pytest.mark.parametrize(
    "python, message", [("/no/such/python", "there is no /no/such/python"), ("/etc/passwd", "/etc/passwd cannot be")]
)
def test_no_interpreter_at_all(host: Host, tmp_path: Path, python: str, message: str) -> None:
    """Missing, or not executable."""
    with pytest.raises(RemoteError, match=message) as caught:
        Agent(host, python=python, state_dir=str(tmp_path / "state")).call("hello")

    assert "hosts.<name>.python" in caught.value.fix


def test_an_interpreter_that_greets_is_understood(host: Host, tmp_path: Path, interpreter: Interpreter) -> None:
    """A wrapper or sitecustomize that prints before the reply."""
    python = interpreter(f'echo "loading modules"; exec {sys.executable} "$@"')
    agent = Agent(host, python=python, state_dir=str(tmp_path / "state"))

    assert agent.call("hello")["python_ok"] is True
    with agent.stream("hello") as events:
        assert [event["kind"] for event in events] == ["result"]


def test_a_state_dir_that_cannot_be_written_names_the_setting(host: Host) -> None:
    """The first thing that hsops does on a host."""
    with pytest.raises(RemoteError, match="cannot write /proc/hsops/agent/") as caught:
        Agent(host, python=sys.executable, state_dir="/proc/hsops").call("hello")

    assert "hosts.<name>.state_dir" in caught.value.fix


def test_without_home_the_password_file_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers and services run without HOME; ``~/`` must not become ``/``."""
    monkeypatch.delenv("HOME")
    host = connect(HostSpec(name="here", ssh="local", python=sys.executable))

    assert host.run(Command(("echo", "~/x"))).stdout.decode() == f"{os.path.expanduser('~')}/x\n"


def test_a_refusal_of_the_operating_system_is_no_bug_of_ours(agent: Agent) -> None:
    """A file where the agent needs a folder: what, where, and what helps, with the errno for code to decide on."""
    agent.call("hello")
    (Path(agent.state_dir) / "runs").write_text("in the way")

    with pytest.raises(AgentError, match=r"run-start failed: .*: .*/runs") as caught:
        agent.call(
            "run-start", server="s", model="m", tp=1, port=0, argv=["x"], env={}, spec_hash="", needs=[], patches={}
        )

    assert (caught.value.code, caught.value.detail["errno"]) == ("os-error", "EEXIST")
    assert caught.value.fix
