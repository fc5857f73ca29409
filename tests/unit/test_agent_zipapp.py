"""The agent's file."""

from __future__ import annotations

import ast
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hsops.agent.protocol import PROTOCOL, SERVE
from hsops.core.errors import AgentError, RemoteError
from hsops.remote.agent import Agent, refusal
from hsops.remote.local import LocalHost
from hsops.remote.zipapp import AGENT, SIZE, bare, build, identity


def test_equal_sources_give_equal_bytes(tmp_path: Path) -> None:
    """Copied elsewhere, with other times and modes, in another order."""
    for i, path in enumerate(sorted(AGENT.glob("*.py"), reverse=True)):
        copy = tmp_path / path.name
        shutil.copyfile(path, copy)
        copy.chmod(0o600)
        os.utime(copy, (1e9 + i, 1e9 + i))

    assert build(tmp_path) == build(AGENT)
    assert identity(tmp_path) == identity(AGENT)


def test_a_changed_source_gives_another_file(tmp_path: Path) -> None:
    """So that a new agent never hides behind an old hash."""
    shutil.copytree(AGENT, tmp_path / "agent", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "agent/protocol.py").open("a") as file:
        file.write("changed = True\n")

    assert build(tmp_path / "agent") != build(AGENT)
    assert identity(tmp_path / "agent") != identity(AGENT)


def test_the_agent_stays_small() -> None:
    """80 KiB, sent once to a host; with what fills it up exactly that, so that a whole one is known by its length."""
    assert len(build()) == SIZE == 80 << 10


@pytest.mark.parametrize("path", sorted(AGENT.glob("*.py")), ids=lambda path: path.stem)
def test_only_what_is_for_readers_stays_at_home(path: Path) -> None:
    """What travels means the same, on the same lines."""

    class Untyped(ast.NodeTransformer):
        """Variables of functions without their types; those of classes may be fields."""

        def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
            node.body = [self.visit(one) if isinstance(one, ast.FunctionDef) else one for one in node.body]
            return node

        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
            inside = node.value is not None and node.col_offset > 0
            return ast.copy_location(ast.Assign([node.target], node.value), node) if inside and node.value else node

    def meaning(source: bytes) -> str:
        tree = Untyped().visit(ast.parse(source))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
                node.body[0] = ast.Pass(lineno=node.body[0].lineno)
            if isinstance(node, ast.FunctionDef):
                node.returns = None
            if isinstance(node, ast.arg):
                node.annotation = None
        return ast.dump(tree) + str([getattr(node, "lineno", 0) for node in ast.walk(tree)])

    source = path.read_bytes()

    assert meaning(bare(source)) == meaning(source) and len(bare(source)) < len(source)


def test_byte_code_for_which_there_is_no_room_leaves_nothing(tmp_path: Path) -> None:
    """Else each command on a full disk would leave a file more. A limit on files' sizes stands for the full disk."""
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(build())

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    request = json.dumps({"verb": "clock", "protocol": PROTOCOL, "params": {}}).encode() + b"\n"
    command = [sys.executable, "-I", str(archive), SERVE]
    done = subprocess.run(command, input=request, capture_output=True, timeout=60, check=True, preexec_fn=no_room)

    assert b'{"result"' in done.stdout
    assert list(tmp_path.iterdir()) == [archive]


def agent() -> Agent:
    """An agent that is not called."""
    return Agent(LocalHost("box"), python="/venv/bin/python", state_dir="~/.hsops")


def test_a_fault_of_the_agent_reads_like_one() -> None:
    """Verb, error and the place in hsops; the traceback stays for --json."""
    trace = 'Traceback\n  File "a.pyz/hsops/agent/logs.py", line 7, in read\n    x\nKeyError: 1\n'
    error = refusal(agent(), "log-read", {"code": "bug", "message": "KeyError: 1", "detail": {"traceback": trace}})

    assert isinstance(error, AgentError)
    assert error.message == "the agent failed in log-read: KeyError: 1"
    assert error.why == 'a fault in hsops: File "a.pyz/hsops/agent/logs.py", line 7, in read'
    assert error.as_json()[0]["detail"] == {"traceback": trace}


def test_another_protocol_names_the_file_to_delete() -> None:
    """Only something foreign at the agent's place can cause it."""
    error = refusal(agent(), "hello", {"code": "protocol", "message": "the agent speaks protocol 2"})

    assert agent().path in error.fix


def test_an_old_python_is_no_agent_error() -> None:
    """It is the inventory that is wrong."""
    error = refusal(agent(), "hello", {"code": "old-python", "message": "3.8.18"})

    assert type(error) is RemoteError
    assert error.message == "/venv/bin/python is Python 3.8.18, the agent needs 3.10 or newer"
    assert "hosts.<name>.python" in error.fix
